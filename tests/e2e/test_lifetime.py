"""What runs on a node outlives every connection: as a systemd unit, or in a session of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparkserve import clusters
from sparkserve.paths import config_dir, state_dir
from tests.e2e.fleet import Fleet
from tests.testbed.plugin import MakeTestbed
from tests.testbed.shell import wait_until

pytestmark = pytest.mark.testbed


def test_run_survives_the_end_of_every_ssh_session(fleet: Fleet) -> None:
    assert fleet.launch(2).code == 0
    before = fleet.engine_processes()
    for node in fleet.nodes[:2]:
        node.kill("sshd")
        node.sshd(on=True)
    assert fleet.engine_processes() == before
    status = fleet.status()
    assert [rank["state"] for rank in status["ranks"]] == ["running", "running"]
    fleet.run("stop", "--now")


def test_node_that_comes_back_after_a_power_cycle_has_nothing_running(fleet: Fleet) -> None:
    assert fleet.launch(2).code == 0
    fleet.nodes[1].stop()
    fleet.wait_silent(fleet.nodes[0])
    fleet.nodes[1].start()
    assert fleet.engine_processes() == {}
    status = fleet.status()
    assert status["outcome"] == "failed"
    assert status["ranks"][1]["reason"] == "the guard died"
    assert fleet.launch(2).code == 0
    fleet.run("stop", "--now")


def test_run_that_nothing_here_knows_is_found_on_the_nodes_and_stopped(fleet: Fleet) -> None:
    assert fleet.launch(2).code == 0
    shutil.rmtree(state_dir())
    clusters.set_default("fleet")
    other = fleet.run("stop", "no-such-run")
    assert other.code == 2
    assert set(fleet.engine_processes()) == {"spark1", "spark2"}
    stopped = fleet.run("stop")
    assert stopped.code == 0, stopped.error
    assert "launched elsewhere" in stopped.stderr
    assert fleet.engine_processes() == {}
    again = fleet.run("stop")
    assert again.code == 0
    assert "nothing to stop" in again.stdout


@pytest.fixture
def systemd_fleet(make_testbed: MakeTestbed, tmp_path: Path) -> Fleet:
    """Two nodes with a real systemd, reached as root."""
    config_dir().mkdir(parents=True)
    fleet = Fleet(make_testbed(nodes=2, init="systemd"), tmp_path)
    cluster = fleet.testbed.cluster(name="fleet")
    as_root = tuple(node.model_copy(update={"user": "root"}) for node in cluster.nodes)
    clusters.save(cluster.model_copy(update={"nodes": as_root}))
    return fleet


def units(fleet: Fleet, number: int) -> list[str]:
    listed = fleet.nodes[number].inside(
        ["systemctl", "list-units", "--plain", "--no-legend", "sparkserve-*"]
    )
    return [line.split()[0] for line in listed.stdout.splitlines()]


def test_rank_is_a_systemd_unit_where_root_asks(systemd_fleet: Fleet) -> None:
    fleet = systemd_fleet
    launched = fleet.launch(2)
    assert launched.code == 0, launched.error
    for number in (0, 1):
        (unit,) = units(fleet, number)
        assert unit.endswith(f"-r{number}.service")
    assert fleet.run("stop").code == 0
    wait_until(
        lambda: [units(fleet, number) for number in (0, 1)] == [[], []], what="no unit is left"
    )
    assert fleet.engine_processes() == {}


def test_unit_that_systemd_stops_ends_the_run_everywhere(systemd_fleet: Fleet) -> None:
    fleet = systemd_fleet
    assert fleet.launch(2, "orphan").code == 0
    (unit,) = units(fleet, 1)
    fleet.nodes[1].inside(["systemctl", "stop", unit])
    fleet.wait_silent()
    assert fleet.status()["outcome"] == "stopped"
