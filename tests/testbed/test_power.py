"""Power cycles, facts and the leavings of killed runs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed import leavings
from tests.testbed.cluster import Testbed
from tests.testbed.network import namespaces_of
from tests.testbed.options import Options
from tests.testbed.plugin import MakeTestbed
from tests.testbed.shell import TestbedError, wait_until

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_a_power_cycle_keeps_disks_and_host_key_and_loses_memory(
    make_testbed: MakeTestbed, init: str
) -> None:
    testbed = make_testbed(nodes=1, init=init)
    node = testbed.nodes[0]
    kept = ["/home/spark/kept", "/mnt/nvme/kept"]
    lost = ["/dev/shm/lost", "/run/lost"]
    node.inside(["touch", *kept, *lost])
    node.stop()
    assert not node.running
    assert node.processes() == []
    with pytest.raises(TestbedError, match="spark1 is off"):
        node.inside(["true"])
    node.start()
    assert subprocess.run(testbed.ssh_argv(node, ["true"])).returncode == 0  # strict host key
    assert node.inside(["ls", *kept]).returncode == 0
    assert node.inside(["ls", *lost], check=False).stdout == ""


def test_a_killed_node_hangs_up_and_a_dark_node_says_nothing(testbed: Testbed) -> None:
    killed, dark = testbed.nodes[:2]
    with testbed.enter():
        first, second = (socket.create_connection((node.address, 22), 2) for node in (killed, dark))
    with first, second:
        for connection in (first, second):
            connection.settimeout(5)
            assert connection.recv(64).startswith(b"SSH-2.0-")
        killed.stop()
        dark.power_off()
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(1) == b""
        # nothing arrives where the power was cut: what had to come would come within a packet time
        assert select.select([second], [], [], 0.3)[0] == []
        dark.start()
        killed.start()
    assert dark.active_faults == []
    assert subprocess.run(testbed.ssh_argv(dark, ["true"])).returncode == 0


def test_killing_by_pattern_ends_exactly_those_processes(testbed: Testbed) -> None:
    node = testbed.nodes[0]
    node.inside(["sh", "-c", "for n in 1 2; do setsid sleep 98765 >/dev/null 2>&1 & done"])
    wait_until(lambda: commands(testbed).count("sleep 98765") == 2, what="two sleepers")
    chosen = next(process for process in node.processes() if process.command == "sleep 98765")
    assert node.kill(chosen.pid) == 1
    wait_until(lambda: commands(testbed).count("sleep 98765") == 1, what="one sleeper")
    assert node.kill("sleep 98765", number=signal.SIGTERM) == 1
    wait_until(lambda: "sleep 98765" not in commands(testbed), what="no sleeper")
    assert node.running


def commands(testbed: Testbed) -> list[str]:
    return [process.command for process in testbed.nodes[0].processes()]


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_changed_facts_are_seen_at_once_by_every_tool(make_testbed: MakeTestbed, init: str) -> None:
    node = make_testbed(nodes=1, init=init).nodes[0]
    node.set_fact(
        gpu_name="NVIDIA H200", mem_available_kib=1234, port_state="2: INIT", machine="riscv64",
        link_speed_mbps=100_000, buddyinfo="Node 0, zone Normal 1 0", kernel_log=("NVRM: Xid 79",),
        ntp_synchronized=False, clock_offset_s=86_400.0, compute_apps=("77, python3, 90000 MiB",),
    )  # fmt: skip
    script = """
        nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
        nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader
        grep MemAvailable /proc/meminfo
        cat /sys/class/infiniband/rocep1s0f0/ports/1/state /sys/class/net/enp1s0f0np0/speed
        uname -m; cat /proc/buddyinfo; dmesg; timedatectl show -p NTPSynchronized --value
        echo $(( $(date +%s) - $(/bin/date +%s) ))
    """
    assert node.inside(["sh", "-c", script]).stdout.splitlines() == [
        "NVIDIA H200, [N/A]",
        "77, python3, 90000 MiB",
        "MemAvailable:       1234 kB",
        "2: INIT",
        "100000",
        "riscv64",
        "Node 0, zone Normal 1 0",
        "NVRM: Xid 79",
        "no",
        "86400",
    ]
    with pytest.raises(TypeError, match="gpu_nmae"):
        node.set_fact(gpu_nmae="typo")


def test_a_reset_gives_back_empty_disks_and_facts_as_built(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(nodes=2)
    node = testbed.nodes[1]
    node.set_fact(gpu_name="other")
    node.blackhole()
    node.replace_host_key()
    node.inside(["touch", "/home/spark/old"])
    testbed.nodes[0].power_off()
    testbed.reset()
    assert "GB10" in node.inside(["nvidia-smi", "-L"]).stdout
    assert node.inside(["ls", "/home/spark"]).stdout == ""
    for each in testbed.nodes:
        assert subprocess.run(testbed.ssh_argv(each, ["true"])).returncode == 0


def test_systemd_is_process_one_and_runs_transient_units(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(nodes=2, init="systemd")
    node = testbed.nodes[1]
    assert node.processes()[0].argv[0].endswith("systemd")
    argv = testbed.ssh_argv(
        node,
        ["sudo systemd-run --quiet --wait --pipe -p User=spark -- id -un; systemctl --version"],
    )
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("spark\nsystemd")


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_no_process_of_a_node_can_set_the_clock_or_load_modules(
    make_testbed: MakeTestbed, init: str
) -> None:
    testbed = make_testbed(nodes=1, init=init)
    node = testbed.nodes[0]
    # numbers from linux/capability.h
    forbidden = {"sys_module": 16, "sys_rawio": 17, "sys_boot": 22, "sys_time": 25, "mknod": 27,
                 "audit_control": 30, "syslog": 34}  # fmt: skip
    over_ssh = subprocess.run(
        testbed.ssh_argv(node, ["cat /proc/self/status"], user="root"),
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for status in (over_ssh, node.read("/proc/1/status"), node.read("/proc/self/status")):
        bits = int(status.split("CapBnd:")[1].split()[0], 16)
        assert [name for name, number in forbidden.items() if bits >> number & 1] == []
    swappiness = Path("/proc/sys/vm/swappiness").read_text()
    node.write("/proc/sys/vm/swappiness", "77\n")
    assert node.read("/proc/sys/vm/swappiness") == "77\n"
    assert Path("/proc/sys/vm/swappiness").read_text() == swappiness
    assert node.inside(["sh", "-c", "echo x >/proc/sys/kernel/hostname"], check=False).returncode
    with pytest.raises(ValueError, match="never gets sys_time"):
        Options(keep_capabilities=("sys_time",))


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_what_a_killed_run_left_is_removed_by_the_next_up(
    make_testbed: MakeTestbed, init: str
) -> None:
    program = (
        "import sys, time\n"
        "from tests.testbed.cluster import Testbed\nfrom tests.testbed.options import Options\n"
        f"t = Testbed(Options(nodes=2, init='{init}', nvme='ext4', nvme_mib=16)); t.up()\n"
        "t.nodes[0].slow(1)\nprint(t.prefix, flush=True)\ntime.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        prefix = owner.stdout.readline().strip()
        assert namespaces_of(prefix)
        with leavings.lock():  # so that no other run sweeps before we have looked
            owner.kill()
            owner.wait()
            assert (leavings.BASE / prefix).is_dir()
            assert prefix in leavings.abandoned()
    make_testbed(nodes=1)
    assert namespaces_of(prefix) == []
    assert not (leavings.BASE / prefix).exists()
    assert prefix not in Path("/proc/self/mountinfo").read_text()
    assert list(Path("/sys/fs/cgroup").glob(f"*/{prefix}-*")) == []
    alive = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert prefix not in alive


def test_an_owner_is_known_by_its_start_time_and_not_by_its_number_alone() -> None:
    prefix = f"sst{os.getpid()}.ownership"
    with leavings.lock():
        folder = leavings.claim(prefix, lasting=False)
        try:
            assert prefix not in leavings.abandoned()
            owner = json.loads((folder / "owner.json").read_text())
            (folder / "owner.json").write_text(json.dumps({**owner, "start": "1"}))
            assert prefix in leavings.abandoned()
        finally:
            leavings.remove(prefix)


def test_lasting_clusters_outlive_their_maker_until_taken_down() -> None:
    prefix = f"sst{os.getpid()}.lasting"
    with leavings.lock():
        leavings.claim(prefix, lasting=True)
        try:
            assert prefix not in leavings.abandoned()
        finally:
            leavings.remove(prefix)
