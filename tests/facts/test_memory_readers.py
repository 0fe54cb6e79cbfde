"""Memory, versions and the kernel's log in the forms in which people paste them."""

from __future__ import annotations

import pytest

from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.kernel_log import KernelLog, PreviousKernelLog
from sparkserve.facts.reader import Fact, understand
from sparkserve.facts.registry import READERS
from sparkserve.facts.unified import Buddyinfo, Compaction, Meminfo, Reserve
from sparkserve.model.facts import Unobserved
from sparkserve.model.reading import Reading

MEMINFO = """\
MemTotal:       127600712 kB
MemFree:         9011224 kB
MemAvailable:   123731968 kB
Buffers:            1024 kB
Cached:          2097152 kB
SwapCached:            0 kB
SwapTotal:      16777212 kB
SwapFree:        4194304 kB
CmaTotal:              0 kB
CmaFree:         9702384 kB
HugePages_Total:       0
"""


def read(text: str, **source: object) -> list[Fact | Unobserved]:
    result = understand([Reading.model_validate({"text": text, **source})], READERS)
    assert result.unread == ()
    return [observation.fact for observation in result.observations]


def one(text: str, **source: object) -> Fact | Unobserved:
    (fact,) = read(text, **source)
    return fact


@pytest.mark.parametrize(
    "source",
    [
        {"path": "/proc/meminfo"},
        {"command": "cat /proc/meminfo"},
        {"command": "ssh spark@10.0.0.2 'cat /proc/meminfo'"},
        {"command": "sudo grep -E 'Mem|Swap|Cma|Buf|Cached' /proc/meminfo"},
        {"command": "cat /proc/meminfo | grep -v Huge"},
        {"what": "/proc/meminfo"},
    ],
)
def test_meminfo_is_the_same_by_whatever_way(source: dict[str, str]) -> None:
    fact = one(MEMINFO, **source)
    assert isinstance(fact, Meminfo)
    assert fact.total_bytes == 127600712 * 1024
    assert fact.available_bytes == 123731968 * 1024
    assert fact.cached_bytes == 2 << 30
    assert fact.swap_used_bytes == 12582908 * 1024
    assert (fact.cma_total_bytes, fact.cma_free_bytes) == (0, 9702384 * 1024)


def test_what_an_excerpt_leaves_out_is_unknown_and_not_zero() -> None:
    fact = one("CmaTotal: 32768 kB\n", command="grep CmaT /proc/meminfo")
    assert isinstance(fact, Meminfo)
    assert fact.cma_total_bytes == 32 << 20
    assert fact.cma_free_bytes is None
    assert fact.total_bytes is None
    assert fact.swap_used_bytes is None


@pytest.mark.parametrize(
    ("command", "text", "swap_used_gib", "available_gib"),
    [
        (
            "free -k",
            "       total used free shared buff/cache available\n"
            "Mem: 127600712 12754944 3014656 98304 111831112 114846720\n"
            "Swap: 16777212 12582908 4194304\n",
            12.0, 109.53,
        ),
        (
            "free -h",
            "       total used free shared buff/cache available\n"
            "Mem:   121Gi   12Gi  2.9Gi  96Mi  106Gi  109.5Gi\nSwap:  16Gi 12Gi 4.0Gi\n",
            12.0, 109.5,
        ),
        (
            "free -m",
            "             gesamt benutzt frei gemns. Puffer/Cache verfügbar\n"
            "Speicher:    124610 12456 2944 96 109209 112155\n"
            "Auslagerungsspeicher: 16384 12288 4096\n",
            12.0, 109.53,
        ),
        (
            "free -h",
            "       total usado libre compartido búf/caché disponible\n"
            "Mem:   121Gi 12Gi 2,9Gi 96Mi 106Gi 109,5Gi\nInter: 16Gi 12Gi 4,0Gi\n",
            12.0, 109.5,
        ),
        (
            "free -b",
            "       total used free shared buff/cache available\n"
            f"Mem: {119 << 30} {1 << 30} {2 << 30} 0 {3 << 30} {110 << 30}\n"
            f"Swap: {16 << 30} {1 << 30} {15 << 30}\n",
            1.0, 110.0,
        ),
    ],
)  # fmt: skip
def test_free_is_read_in_any_unit_and_language(
    command: str, text: str, swap_used_gib: float, available_gib: float
) -> None:
    fact = one(text, command=command)
    assert isinstance(fact, Meminfo)
    assert fact.swap_used_bytes == pytest.approx(swap_used_gib * 2**30, rel=1e-3)
    assert fact.available_bytes == pytest.approx(available_gib * 2**30, rel=1e-3)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"command": "swapon --show"}, "NAME TYPE SIZE USED PRIO\n/swap.img file 16G 12G -2\n"),
        (
            {"path": "/proc/swaps"},
            "Filename Type Size Used Priority\n/swap.img file 16777216 12582912 -2\n",
        ),
        (
            {"command": "cat /proc/swaps"},
            "Filename Type Size Used Priority\n/a file 8388608 8388608 -2\n"
            "/b partition 8388608 4194304 -3\n",
        ),
    ],
)
def test_swap_in_use_is_the_sum_over_its_devices(source: dict[str, str], text: str) -> None:
    fact = one(text, **source)
    assert isinstance(fact, Meminfo)
    assert (fact.swap_total_bytes, fact.swap_used_bytes) == (16 << 30, 12 << 30)


def test_no_line_of_swapon_means_no_swap() -> None:
    assert one("", command="swapon --show") == Meminfo(swap_total_bytes=0, swap_free_bytes=0)


def test_blocks_are_kept_by_zone_and_order_however_many_columns_there_are() -> None:
    fact = one(
        "Node 0, zone      DMA   1 0 103\nNode 0, zone   Normal   5 4 3 2\n",
        path="/proc/buddyinfo",
    )
    assert isinstance(fact, Buddyinfo)
    assert [(zone.name, zone.blocks) for zone in fact.zones] == [
        ("DMA", (1, 0, 103)),
        ("Normal", (5, 4, 3, 2)),
    ]


def test_kinds_of_pages_are_added_up() -> None:
    fact = one(
        "Page block order: 9\n"
        "Free pages count per migrate type at order 0 1 2\n"
        "Node    0, zone   Normal, type    Unmovable      1      2      3 \n"
        "Node    0, zone   Normal, type      Movable     10     20     30 \n",
        command="sudo cat /proc/pagetypeinfo",
    )
    assert isinstance(fact, Buddyinfo)
    assert fact.zones[0].blocks == (11, 22, 33)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"command": "sysctl -n vm.min_free_kbytes"}, "4194304\n"),
        ({"command": "sudo sysctl vm.min_free_kbytes"}, "vm.min_free_kbytes = 4194304\n"),
        ({"command": "cat /proc/sys/vm/min_free_kbytes"}, "4194304"),
        ({"path": "/proc/sys/vm/min_free_kbytes"}, "4194304\n"),
        ({"path": "/etc/sysctl.d/90-oom.conf"}, "# more\nvm.min_free_kbytes=4194304\n"),
    ],
)
def test_reserve_is_read_from_sysctl_proc_and_its_file(source: dict[str, str], text: str) -> None:
    assert one(text, **source) == Reserve(min_free_bytes=4 << 30)


def test_compaction_counts_are_read() -> None:
    fact = one("compact_stall 7\ncompact_fail 3\n", command="grep compact_ /proc/vmstat")
    assert fact == Compaction(stalls=7, failures=3)


def test_several_commands_on_one_line_give_the_facts_of_each() -> None:
    facts = read(
        "7.0.0-1019-nvidia\nCmaTotal: 0 kB\nCmaFree: 4 kB\nBOOT_IMAGE=/boot/v root=/dev/x ro\n",
        command="uname -r; grep Cma /proc/meminfo; cat /proc/cmdline",
    )
    assert set(map(type, facts)) == {HostVersions, Meminfo}
    (versions,) = (fact for fact in facts if isinstance(fact, HostVersions))
    assert versions.kernel == "7.0.0-1019-nvidia"
    assert versions.cmdline == "BOOT_IMAGE=/boot/v root=/dev/x ro"


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ({"command": "uname -r"}, "6.17.0-1032-nvidia\n", {"kernel": "6.17.0-1032-nvidia"}),
        (
            {"command": "uname -a"},
            "Linux spark1 6.17.0-1032-nvidia #32-Ubuntu SMP Tue aarch64 aarch64 GNU/Linux\n",
            {"kernel": "6.17.0-1032-nvidia", "architecture": "aarch64"},
        ),
        (
            {"path": "/proc/driver/nvidia/version"},
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.173.02  Release\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
            {"driver_module": "580.173.02"},
        ),
        ({"path": "/sys/module/nvidia/version"}, "580.173.02\n", {"driver_module": "580.173.02"}),
        (
            {"path": "/sys/class/infiniband/rocep1s0f0/fw_ver"},
            "28.45.4028\n",
            {"nic_firmware": {"rocep1s0f0": "28.45.4028"}},
        ),
        (
            {"command": "grep . /sys/class/infiniband/*/fw_ver"},
            "/sys/class/infiniband/rocep1s0f0/fw_ver:28.45.4028\n",
            {"nic_firmware": {"rocep1s0f0": "28.45.4028"}},
        ),
        ({"command": "getconf PAGESIZE"}, "65536\n", {"page_bytes": 65536}),
        ({"path": "/etc/dgx-release"}, 'DGX_SWBUILD_VERSION="7.3.1"\n', {"dgx_os": "7.3.1"}),
        ({"command": "docker --version"}, "Docker version 28.3.3, build 9\n", {"docker": "28.3.3"}),
    ],
)
def test_versions_are_known_by_the_shape_of_their_lines(
    source: dict[str, str], text: str, expected: dict[str, object]
) -> None:
    assert one(text, **source) == HostVersions.model_validate(expected)


def test_our_own_question_is_understood() -> None:
    fact = one(
        "kernel=6.17.0-1032-nvidia\narchitecture=aarch64\ncmdline=root=/dev/x kho=off\n"
        "page_bytes=4096\nboot_id=b1\nuptime_s=12.5\n"
        "nvrm=NVIDIA UNIX Open Kernel Module for aarch64  580.173.02  Release Build\n"
        "fw= rocep1s0f0:28.45.4028 rocep1s0f1:28.45.4028\nproduct=NVIDIA_DGX_Spark\nbios=\n"
        "dgx_os=7.3.1\n",
        what="host versions",
    )
    assert isinstance(fact, HostVersions)
    assert fact.cmdline == "root=/dev/x kho=off"
    assert fact.driver_module == "580.173.02"
    assert fact.nic_firmware == {"rocep1s0f0": "28.45.4028", "rocep1s0f1": "28.45.4028"}
    assert fact.bios is None
    assert fact.uptime_s == 12.5


@pytest.mark.parametrize(
    "command",
    ["dmesg", "sudo dmesg -T", "dmesg --time-format iso | tail -50", "journalctl -k -b --no-pager"],
)
def test_lines_of_the_kernel_are_kept_in_order(command: str) -> None:
    fact = one("[1.0] first\n\n[2.0] second\n", command=command)
    assert fact == KernelLog(lines=("[1.0] first", "[2.0] second"))


def test_log_of_the_boot_before_is_another_log() -> None:
    fact = one(
        "-- Journal begins at x --\nusb 1-1: new device\n", command="journalctl -k -b -1 --no-pager"
    )
    assert fact == PreviousKernelLog(lines=("usb 1-1: new device",))


def test_empty_log_was_read_and_a_forbidden_one_was_not() -> None:
    assert one("", command="dmesg") == KernelLog(lines=())
    refused = one("dmesg: read kernel buffer failed: Operation not permitted\n", command="dmesg")
    assert isinstance(refused, Unobserved)
    assert "Operation not permitted" in refused.reason


@pytest.mark.parametrize(
    "source",
    [
        {"path": "/proc/meminfo"},
        {"path": "/proc/buddyinfo"},
        {"command": "free"},
        {"command": "sysctl -n vm.min_free_kbytes"},
        {"command": "uname -r"},
        {"command": "swapon --show"},
        {"command": "getconf PAGESIZE"},
    ],
)
def test_text_that_does_not_hold_the_fact_is_not_observed(source: dict[str, str]) -> None:
    facts = read("Segmentation fault (core dumped)\n", **source)
    assert facts
    assert all(isinstance(fact, Unobserved) for fact in facts)


@pytest.mark.parametrize(
    "command",
    [
        "echo --- ; grep Cma /proc/meminfo",
        "uname -r && grep -i cma /proc/meminfo && ulimit -l",
        "ssh spark2 'uname -r; grep Cma /proc/meminfo'",
    ],
)
def test_parts_that_nobody_reads_do_not_hide_the_others(command: str) -> None:
    facts = read("---\n7.0.0-1-nvidia\nCmaTotal: 0 kB\nCmaFree: 4 kB\nunlimited\n", command=command)
    assert Meminfo(cma_total_bytes=0, cma_free_bytes=4096) in facts
