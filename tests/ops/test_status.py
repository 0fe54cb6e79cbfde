"""Which run is meant, and what the nodes say of it by their own clocks and versions."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sparkserve import __version__, runs
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster
from sparkserve.model.node_state import RankStatus
from sparkserve.model.record import RunOutcome
from sparkserve.ops import logs, status
from sparkserve.ops.doors import Doors
from sparkserve.ops.run_choice import NEWEST, RunChoice, choose
from sparkserve.transport.host import GroupResult, Result
from tests import scenes
from tests.ops.told import ToldHost, state
from tests.report import runs as samples


def made(hour: int, outcome: RunOutcome, *, nodes: slice = slice(0, 2), name: str = "lab") -> str:
    """A recorded run on some of four nodes; its id."""
    directory = runs.create_new(datetime(2026, 11, 30, hour, tzinfo=UTC), "x")
    cluster = Cluster(name=name, nodes=scenes.cluster(4).nodes[nodes])
    record = samples.record(2, run_id=directory.run_id, outcome=outcome, cluster=cluster)
    directory.write_record(record.model_copy(update={"pythons": {"spark1": "/py"}}))
    return directory.run_id


def chosen(choice: RunChoice = NEWEST) -> str:
    return choose(choice).run_id


class TestChoice:
    @pytest.mark.parametrize("later", ["failed", "launching", "stopped"])
    def test_is_the_later_run_of_the_same_nodes_whatever_an_old_record_says(
        self, later: RunOutcome
    ) -> None:
        made(1, "serving")
        second = made(2, later)
        assert chosen() == chosen(RunChoice(cluster="lab")) == second

    def test_is_the_run_that_serves_on_other_nodes_before_a_later_one_that_does_not(self) -> None:
        first = made(1, "serving")
        made(2, "failed", nodes=slice(2, 4), name="other")
        assert chosen() == first

    def test_counts_a_shared_node_under_another_clusters_name(self) -> None:
        made(1, "serving")
        second = made(2, "failed", nodes=slice(1, 3), name="hosts")
        assert chosen() == second

    def test_is_the_newest_where_none_serves(self) -> None:
        made(1, "stopped")
        second = made(2, "failed", nodes=slice(2, 4))
        assert chosen() == second

    def test_of_nothing_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="nothing was launched on cluster lab"):
            choose(RunChoice(cluster="lab"))


class Node(ToldHost):
    """A node with one rank and no port."""

    def forward(self, remote_port: int) -> Any:
        raise ConfigError("no port is forwarded here")


def asked(answer: dict[str, Any]) -> RankStatus:
    """The status of a run of one rank whose node answers so."""
    made(1, "serving", nodes=slice(0, 1))
    group = GroupResult({"spark1": Node("spark1", output=json.dumps(answer))}, {})
    (rank,) = status.run(status.StatusRequest(), Doors(connect=lambda _: group)).ranks
    return rank


RUNNING = json.loads(state(0, "running"))["value"] | {"at_s": 5_000.0}
COUNTERS = {
    "at_s": 5_060.0, "log_bytes": 1, "read_bytes": 1, "cpu_s": 1.0, "rss_bytes": 1,
    "memory_available_bytes": 1, "processes": 1,
}  # fmt: skip


def test_uptime_is_by_the_nodes_own_clock() -> None:
    rank = asked({"state": RUNNING, "progress": COUNTERS, "last_line": "x"})
    assert (rank.state, rank.uptime_s, rank.last_line) == ("running", 60.0, "x")


def test_wedge_that_the_guard_sees_makes_the_run_unhealthy_and_is_a_finding() -> None:
    noticed = RUNNING | {"notice": "engine wedged: 3 requests run, no token came for 60 s"}
    made(1, "serving", nodes=slice(0, 1))
    answer = {"state": noticed, "progress": COUNTERS, "last_line": ""}
    group = GroupResult({"spark1": Node("spark1", output=json.dumps(answer))}, {})
    found = status.run(status.StatusRequest(), Doors(connect=lambda _: group))
    assert found.outcome == "unhealthy"
    (finding,) = found.findings
    assert (finding.code, finding.node, finding.verdict) == ("ENG_SPIN_WEDGE", "spark1", "FAIL")
    assert "3 requests run" in finding.observed


def test_clock_that_was_set_back_gives_no_negative_uptime() -> None:
    counters = COUNTERS | {"at_s": 4_000.0}
    assert asked({"state": RUNNING, "progress": counters, "last_line": ""}).uptime_s == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        {"state": RUNNING | {"a_later_field": 1}, "progress": None, "last_line": ""},
        {"state": {"state": "running"}, "progress": None, "last_line": ""},
        {"another": "form"},
    ],
)
def test_node_of_another_version_is_shown_as_such(answer: dict[str, Any]) -> None:
    rank = asked(answer)
    assert rank.state == "unreachable"
    assert f"expected sparkserve {__version__} there" in rank.reason


def test_logs_do_not_show_the_runs_key(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text("sk-secret-1\n")
    profile = scenes.profile(serving={"api_key_file": str(key_file)})
    directory = runs.create_new(datetime(2026, 11, 30, tzinfo=UTC), "x")
    directory.write_record(samples.record(1, run_id=directory.run_id, profile=profile))
    cancel = threading.Event()

    class Logging(ToldHost):
        def stream(self, argv: Any, *, on_line: Any, cancel: threading.Event) -> Result:
            on_line("api_key='sk-secret-1'")
            return Result(self.name, "", "exited", 0, "", "", 0.0)

    group = GroupResult({"spark1": Logging("spark1")}, {})
    lines: list[str] = []
    doors = Doors(connect=lambda _: group)
    logs.run(logs.LogsRequest(), doors, lambda node, rank, line: lines.append(line), cancel)
    assert lines == ["api_key='***'"]
