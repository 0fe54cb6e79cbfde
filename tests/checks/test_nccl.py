"""What images and files bring along, the NCCL that runs, and what pair tests measured."""

from __future__ import annotations

import pytest

from sparkserve.facts.bandwidth import Rates
from sparkserve.facts.reader import understand
from sparkserve.facts.registry import READERS
from sparkserve.model.reading import Reading
from tests.casefiles import CASES, variants
from tests.readings import findings, holds, passes, ran, told, verdicts

INSPECT = "docker image inspect -f '{{json .Config.Env}}' lab/engine:1"


def case(number: str) -> tuple[Reading, ...]:
    (folder,) = CASES.glob(f"{number}-*")
    return next(iter(variants(folder))).readings


def test_variables_of_the_image_that_the_run_does_not_set_are_listed() -> None:
    (finding,) = findings(*case("B09"))
    assert verdicts([finding]) == [("NET_IMAGE_ENV_BAKED", "WARN", None)]
    assert "TP_SOCKET_IFNAME=enP7s7, GLOO_SOCKET_IFNAME=enP7s7" in finding.observed
    assert "NCCL_SOCKET_IFNAME" not in finding.observed


def test_baked_interface_that_the_node_lacks_fails() -> None:
    image = ran(INSPECT, '["GLOO_SOCKET_IFNAME=eth0", "CUDA_VERSION=13.0.2"]', "n1")
    own = ran("ip -o -4 addr", "5: enp1s0f0np0    inet 10.0.0.1/24 scope global\n", "n1")
    (finding,) = findings(image, own)
    assert verdicts([finding]) == [("NET_IMAGE_ENV_BAKED", "FAIL", "n1")]
    assert "no such interface here: eth0" in finding.observed


@pytest.mark.parametrize(
    "variables",
    ['["NCCL_VERSION=2.30.7", "PATH=/bin"]', '["NCCL_SOCKET_IFNAME=enP7s7"]', '["LANG=C"]'],
)
def test_versions_and_overridden_variables_are_quiet(variables: str) -> None:
    run = told("rendered -e list", "NCCL_SOCKET_IFNAME=enp1s0f0np0\n", format="env")
    assert findings(ran(INSPECT, variables), run) == []


def test_settings_of_an_nccl_conf_are_counted_and_listed() -> None:
    (finding,) = findings(*case("B13"))
    assert verdicts([finding]) == [("NET_NCCL_CONF_IN_IMAGE", "FAIL", None)]
    assert "2 unexpected settings" in finding.observed
    assert "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS=1" in finding.observed


@pytest.mark.parametrize(
    ("reading", "loud"),
    [
        (holds("/etc/nccl.conf", "NCCL_DEBUG=INFO\n", "n1"), True),
        (ran("docker exec rank0 cat /etc/nccl.conf", "  NCCL_ALGO = Ring  # x\n", "n1"), True),
        (ran("cat /etc/nccl.conf ~/.nccl.conf", "# nothing\n\n", "n1"), False),
        (
            ran("cat /etc/nccl.conf", "cat: /etc/nccl.conf: No such file or directory\n", "n1"),
            False,
        ),
        (ran("cat /etc/nccl.conf", "", "n1"), False),
    ],
)
def test_only_settings_count_and_a_missing_file_is_quiet(reading: Reading, loud: bool) -> None:
    assert [f.code for f in findings(reading)] == (["NET_NCCL_CONF_IN_IMAGE"] if loud else [])


def test_setting_that_the_profile_names_is_expected() -> None:
    wish = told("profile", "nccl:\n  NCCL_IB_USE_INLINE: 1\n", format="yaml")
    assert findings(holds("/etc/nccl.conf", "NCCL_IB_USE_INLINE=1\n"), wish) == []


def test_old_nccl_is_named_with_the_bound_and_the_other_ranks() -> None:
    found = [f for f in findings(*case("B14")) if f.check_id == "NCCL.VERSION"]
    assert verdicts(found) == [("NET_NCCL_TOO_OLD", "FAIL", "rank0")]
    assert "2.28.9 < 2.29.3" in found[0].observed
    assert "ranks differ: rank0 2.28.9, rank1 2.30.7" in found[0].observed


@pytest.mark.parametrize(
    ("first", "second", "nodes"),
    [
        ("sglang is using nccl==2.29.2", "NCCL version 2.29.2+cuda13.0", ["rank0", "rank1"]),
        ("NCCL version 2.29.3+cuda13.0", "nccl==2.29.3", []),
        ("nccl==2.30.4", "nccl==2.30.7", [None]),
        ("nccl==2.9.9", "nccl==2.30.7", ["rank0"]),
    ],
)
def test_versions_are_compared_as_numbers_and_over_ranks(
    first: str, second: str, nodes: list[str | None]
) -> None:
    logs = told("engine log", first, "rank0"), told("rank 1 log", second, "rank1")
    found = [f for f in findings(*logs) if f.check_id == "NCCL.VERSION"]
    assert [f.node for f in found] == nodes


def test_library_of_the_running_process_counts_more_than_what_lies_about() -> None:
    text = (
        "library path=/usr/lib/libnccl.so.2 pid=77 version=2.28.9 patch=0 size=100\n"
        "library path=/srv/venv/libnccl.so.2 pid= version=2.30.7 patch=0 size=100\n"
    )
    (finding,) = findings(told("nccl libraries", text, "n1"))
    assert finding.observed.startswith("NCCL 2.28.9 < 2.29.3")
    strings = "NCCL version 2.28.3+cuda12.9\n"
    command = 'strings /usr/lib/libnccl.so.2 | grep "NCCL version"'
    assert [f.node for f in findings(ran(command, strings, "n2"))] == ["n2"]


def test_ring_with_a_stock_library_fails_and_a_patched_one_passes() -> None:
    wish = told(
        "profile", "topology: ring\nnnodes: 4\nnccl: {switchless_patch: true, sha256: ab}\n",
        format="yaml",
    )  # fmt: skip
    stock = "library path=/x/libnccl.so.2 pid=7 version=2.30.7 patch=0 size=9\n"
    (finding,) = findings(wish, told("nccl libraries", stock, "n1"), code="NET_RING_TREE")
    assert "lacks SWITCHLESS_RING_ONLY" in finding.observed
    patched = told("nccl libraries", stock.replace("patch=0", "patch=1"), "n1")
    assert [f.node for f in passes(wish, patched, check="NCCL.RING_PATCH")] == ["n1"]


def test_two_libraries_in_one_process_fail() -> None:
    text = "/usr/lib/libnccl.so.2\n/usr/lib/libnccl.so.2\n/opt/overlay/libnccl.so.2.30.7\n"
    (finding,) = findings(ran('grep -o "/.*libnccl.so[^ ]*" /proc/4711/maps', text, "n1"))
    assert finding.code == "NET_NCCL_TWICE"
    assert "4711" in finding.observed


# Bandwidth


def perftest(average: str, unit: str = "Gb/sec") -> str:
    return (
        f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
        f" 65536      40000            {average}              {average}              0.02\n"
    )


def test_degraded_adapter_is_told_from_a_bad_link() -> None:
    (finding,) = findings(*case("B15"))
    assert verdicts([finding]) == [("NET_CX7_DEGRADED", "FAIL", "node1")]
    assert "13.23 Gb/s" in finding.observed
    assert "enp1s0f0np0 200000 Mb/s and PCIe x4 32 GT/s are well" in finding.observed
    assert "27W" not in finding.observed


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (perftest("94.10"), None),
        (perftest("24.90"), "NET_CX7_DEGRADED"),
        (perftest("8.10"), "NET_CX7_DEGRADED"),
        (perftest("7.90"), "NET_RDMA_BROKEN"),
        (perftest("0.00"), "NET_RDMA_BROKEN"),
        (perftest("60.00"), "NET_RDMA_SLOW"),
        (perftest("1577.13", "MB/sec"), "NET_CX7_DEGRADED"),
        (perftest("11200.00", "MB/sec"), None),
        ("Couldn't connect to 10.0.0.2:18515\nUnable to open file descriptor\n", "NET_RDMA_BROKEN"),
    ],
)
def test_rdma_figures_are_weighed(text: str, code: str | None) -> None:
    found = findings(ran("ib_write_bw -d rocep1s0f0 -x 3 10.0.0.2", text, "n1"))
    assert [f.code for f in found] == ([code] if code else [])
    assert all("rocep1s0f0" in f.observed for f in found)


def test_slow_rdma_over_a_narrow_slot_blames_the_slot() -> None:
    slot = holds("/sys/bus/pci/devices/0000:01:00.0/current_link_width", "2\n", "n1")
    found = findings(ran("ib_write_bw", perftest("13.0"), "n1"), slot)
    assert {f.code for f in found} == {"NET_PCIE_NARROW", "NET_RDMA_SLOW"}


def tcp(client: str, server: str, gbps: float) -> Reading:
    text = f"bytes={int(gbps * 1e9 / 8)} seconds=1.0\n"
    return told("tcp pair test", text, client, note=f"{client} -> {server}")


def rdma(client: str, server: str, gbps: str) -> Reading:
    return told("ib_write_bw", perftest(gbps), client, note=f"{client} -> {server}")


def test_node_that_every_slow_pair_shares_is_blamed_whoever_measured() -> None:
    fast = [rdma("a", "b", "95.1"), rdma("b", "c", "94.8")]
    slow = [rdma("a", "d", "13.1"), rdma("d", "b", "13.3"), rdma("c", "d", "13.2")]
    found = findings(*fast, *slow, code="NET_CX7_DEGRADED")
    assert [f.node for f in found] == ["d", "d", "d"]
    assert "measured by a; every slow test has d at an end" in found[0].observed


def test_slow_pairs_without_one_end_in_common_stay_with_who_measured() -> None:
    found = findings(rdma("a", "b", "13.1"), rdma("c", "d", "13.2"), code="NET_CX7_DEGRADED")
    assert [f.node for f in found] == ["a", "c"]
    both_ways = findings(rdma("a", "b", "13.1"), rdma("b", "a", "13.2"), code="NET_CX7_DEGRADED")
    assert [f.node for f in both_ways] == ["a", "b"]


def test_slow_and_uneven_tcp_pairs_are_named() -> None:
    pairs = [tcp("a", "b", 30.0), tcp("b", "c", 28.0), tcp("c", "a", 9.0)]
    (finding,) = findings(*pairs)
    assert verdicts([finding]) == [("NET_TCP_SLOW", "WARN", "c")]
    assert "9 Gb/s to a" in finding.observed
    (finding,) = findings(tcp("a", "b", 0.4))
    assert finding.verdict == "FAIL"
    lost = told("tcp pair test", "no connection: timed out\n", "a", note="a -> b")
    assert "no result to b" in findings(lost)[0].observed


def test_iperf_is_read_in_both_forms() -> None:
    text = (
        "[  5]   0.00-10.00  sec  12.0 GBytes  10.3 Gbits/sec    0             sender\n"
        "[  5]   0.00-10.04  sec  12.0 GBytes  10.2 Gbits/sec                  receiver\n"
    )
    data = '{"end": {"sum_received": {"bits_per_second": 10200000000.0}}}'
    readings = [ran("iperf3 -c 10.0.0.2", text, "n"), ran("iperf3 -J -c 10.0.0.2", data, "n")]
    facts = [o.fact for o in understand(readings, READERS).observations]
    assert [f.best_gbps("tcp") for f in facts if isinstance(f, Rates)] == [10.2, 10.2]


def test_collective_is_judged_at_large_sizes_only() -> None:
    row = "{size} 262144 float none -1 500.0 {alg} {bus} 0 500.0 {alg} {bus} 0\n"
    small = row.format(size=1048576, alg="1.0", bus="0.75")
    fast = row.format(size=67108864, alg="30.0", bus="22.5")
    slow = row.format(size=67108864, alg="4.0", bus="3.0")
    assert findings(ran("./build/all_gather_perf -b 1M -e 64M", small + fast, "n")) == []
    (finding,) = findings(ran("mpirun -np 2 all_gather_perf", small + slow, "n"))
    assert (finding.code, finding.observed) == (
        "NET_COLLECTIVE_SLOW", "collective of 67108864 B: 3 GB/s",
    )  # fmt: skip


OURS = "backend {backend}\n67108864 16777216 float sum -1 9000.0 7.4 {busbw} {wrong}\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (OURS.format(backend="nccl", busbw="22.0", wrong=0), None),
        (OURS.format(backend="nccl", busbw="2.0", wrong=0), "NET_COLLECTIVE_SLOW"),
        (OURS.format(backend="gloo", busbw="0.2", wrong=0), None),
        (OURS.format(backend="nccl", busbw="22.0", wrong=17), "NET_COLLECTIVE_BROKEN"),
        ("backend nccl\ntorch.distributed.DistBackendError: NCCL error: unhandled system error\n",
         "NET_COLLECTIVE_BROKEN"),
    ],
)  # fmt: skip
def test_our_all_reduce_is_judged_by_result_and_speed(text: str, code: str | None) -> None:
    found = findings(told("all_reduce_perf by torch", text, "n"))
    assert [f.code for f in found] == ([code] if code else [])


def test_all_reduce_without_a_gpu_is_told_and_not_judged() -> None:
    text = OURS.format(backend="gloo", busbw="0.2", wrong=0)
    (finding,) = passes(told("all_reduce_perf by torch", text, "n"), check="NCCL.BANDWIDTH")
    assert "by gloo; no GPU took part" in finding.observed


def test_slow_small_writes_warn_with_both_figures() -> None:
    head = " #bytes #iterations  t_min t_max t_typical t_avg t_stdev 99% 99.9%\n"
    good = head + " 12288 10000 4.1 30.2 4.3 4.4 0.2 5.1 9.0\n"
    late = head + " 16384 10000 4.1 90.2 4.3 6.4 0.2 25.5 60.0\n"
    assert findings(ran("ib_write_lat -d a 10.0.0.2", good, "n")) == []
    (finding,) = findings(ran("ib_write_lat -d a 10.0.0.2", late, "n"))
    assert verdicts([finding]) == [("NET_RDMA_LATE", "WARN", "n")]
    assert finding.observed == "16384 B 6.4 us (99 %: 25.5 us)"


def test_errors_counted_during_a_test_fail_and_old_ones_do_not() -> None:
    line = "/sys/class/net/enp1s0f0np0/statistics/rx_crc_errors:{}\n"
    before = told("link counters before the tests", line.format(7), "n")
    same = told("link counters after the tests", line.format(7), "n")
    grown = told("link counters after the tests", line.format(9), "n")
    assert findings(before, same) == []
    assert findings(grown) == []
    (finding,) = findings(before, grown)
    assert verdicts([finding]) == [("NET_CABLE_ERRORS", "FAIL", "n")]
    assert finding.observed == "during the test: enp1s0f0np0/rx_crc_errors +2"
    assert "enp1s0f0np0" in finding.fix


def test_words_of_nccl_below_last_error_are_the_reason() -> None:
    # as torch 2.11 prints it (NCCL 2.28.9, one H200, NCCL_SOCKET_IFNAME of no interface)
    text = (
        "backend nccl\n[rank0]: Traceback (most recent call last):\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3135,"
        " invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
        "[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "[rank0]: Last error:\n[rank0]: Bootstrap : no socket interface found\n"
        "[rank0]:[W1201 01:58:03 ProcessGroupNCCL.cpp:1575] Warning: WARNING: not destroyed\n"
    )
    found = findings(told("all_reduce_perf by torch", text, "n"), code="NET_COLLECTIVE_BROKEN")
    assert [f.observed for f in found] == ["no result: Bootstrap : no socket interface found"]
