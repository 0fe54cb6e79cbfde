"""Doctor over simulated Sparks: quiet on a healthy cluster, read-only, gone without a trace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkserve.facts.probe import PROBE_LIMIT_S
from tests.e2e.doctor_fleet import DoctorFleet, told
from tests.testbed.cluster import Testbed
from tests.testbed.disk import REPOSITORY
from tests.testbed.node import Node
from tests.testbed.options import Options
from tests.testbed.plugin import require_testbed
from tests.testbed.shell import wait_until

pytestmark = pytest.mark.testbed

OF_THE_LOGIN = ("/run/sshd.log", "/run/utmp", "/var/log/lastlog", "/var/log/wtmp", "/run/sudo/")
"""What sshd and sudo write about every login, whoever it is."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoctorFleet]:
    """Four healthy nodes with real file systems, checkpoint and shards."""
    require_testbed()
    # bound, so that all nodes see the same code even where it changes while they run
    with Testbed(Options(nvme="ext4", nvme_mib=4096, binds=(str(REPOSITORY),))) as testbed:
        made = DoctorFleet(testbed, tmp_path_factory.mktemp("doctor"))
        made.fill_disks()
        yield made


def files_of(node: Node) -> dict[str, str]:
    """Every file that the node could have written: path -> size, mode, owner and changes."""
    # the node's root is a layer over the machine's: only what lies in the layer can have changed
    layer = node.disk.upper
    found = {}
    for path in (*layer.rglob("*"), *(node.folder / "nvme").rglob("*")):
        kept = path.lstat()
        name = str(path).removeprefix(str(layer))
        found[name] = f"{kept.st_size} {kept.st_mode:o} {kept.st_uid} {kept.st_mtime_ns}"
    listed = node.inside(
        ["find", "/tmp", "/run", "/dev/shm", "/proc/sys/vm", "-printf", "%p %s %m %u %T@\n"]
    )
    found |= dict(line.split(" ", 1) for line in listed.stdout.splitlines())
    return {name: text for name, text in found.items() if not name.startswith(OF_THE_LOGIN)}


def settings_of(node: Node) -> str:
    """What the kernel holds for the node: addresses, routes, filters, limits."""
    files = "/proc/sys/vm/* /proc/sys/net/ipv4/ip_forward /proc/self/mounts"
    script = f"ip -o addr; ip route; ip rule; iptables-save; ls /proc/sys/vm; cat {files}"
    lines = node.inside(["sh", "-c", script]).stdout.splitlines()
    # packet counters and the time of the listing
    return "\n".join(line.partition("[")[0] for line in lines if not line.startswith("#"))


def processes_of(node: Node) -> set[tuple[int, str]]:
    return {(process.pid, process.command) for process in node.processes()}


def wait_settled(node: Node, before: set[tuple[int, str]]) -> None:
    """Wait until the node runs what it ran before."""
    # a question that nobody waits for any more is ended by its own time limit
    wait_until(
        lambda: processes_of(node) == before,
        what=f"{node.name} as it was",
        deadline_s=2 * PROBE_LIMIT_S,
    )


def test_healthy_cluster_is_clean(fleet: DoctorFleet, tmp_path: Path) -> None:
    answer = fleet.doctor("--save", tmp_path / "bundle")
    assert answer.bad == [], told(answer.bad)
    assert answer.unknown == [], told(answer.unknown)
    assert answer.result["unread"] == []
    assert answer.code == 0
    assert {one["node"] for one in answer.findings if one["outcome"] == "pass"} >= {
        node.name for node in fleet.nodes
    }
    again = fleet.replay(tmp_path / "bundle")
    assert again.findings == answer.findings
    assert again.result["unread"] == []


def test_reading_changes_nothing_on_any_node(fleet: DoctorFleet) -> None:
    fleet.doctor()  # what only a first login writes is written
    before = [(files_of(node), settings_of(node), processes_of(node)) for node in fleet.nodes]
    fleet.doctor()
    for node, (files, settings, processes) in zip(fleet.nodes, before, strict=True):
        wait_settled(node, processes)
        assert files_of(node) == files
        assert settings_of(node) == settings


def test_doctors_that_are_ended_midway_leave_nothing_behind(fleet: DoctorFleet) -> None:
    node = fleet.nodes[1]
    before = {each.name: processes_of(each) for each in fleet.nodes}
    tool, asked = "/usr/local/bin/nvidia-smi", "/tmp/nvidia-smi-was-asked"
    node.inside(["mv", tool, f"{tool}.1"])
    node.write(tool, f"#!/bin/sh\necho >>{asked}\nexec sleep 98765\n")
    node.inside(["chmod", "755", tool])

    def hangs() -> int:
        return sum(process.command == "sleep 98765" for process in node.processes())

    try:
        command = ("doctor", "--cluster", "fleet", "--profile", fleet.profile, "--json")
        running = [fleet.start(*command) for _ in range(2)]
        wait_until(lambda: hangs() == 2, what="both wait for the tool")
        for doctor, number in zip(running, (signal.SIGINT, signal.SIGKILL), strict=True):
            doctor.interrupt(number)
        assert [doctor.finish().code for doctor in running] == [130, -signal.SIGKILL]
        for each in fleet.nodes:
            wait_settled(each, before[each.name])
        # several questions ask this tool: a node that goes on reading for nobody asks it again
        assert node.read(asked) == "\n\n"
    finally:
        node.inside(["sh", "-c", f"mv {tool}.1 {tool}; rm -f {asked}"])


def test_all_reduce_over_the_nodes_is_measured_on_request(fleet: DoctorFleet) -> None:
    # each cable is measured for seconds, so two nodes must do
    fleet.write_cluster(count=2)
    pair = fleet.write_profile("pair", parallel={"tp": 2})
    try:
        answer = fleet.doctor("--bandwidth", "--collective", profile=pair)
    finally:
        fleet.write_cluster()
    assert answer.of("NET_COLLECTIVE_BROKEN") == [], told(answer.bad)
    (finding,) = [one for one in answer.findings if one["check_id"] == "NCCL.BANDWIDTH"]
    assert (finding["node"], finding["outcome"]) == ("spark1", "pass")
    assert "no GPU took part" in finding["observed"]
