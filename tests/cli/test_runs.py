"""Launch, status, logs and stop: requests made of options, results in every form."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkserve.errors import NotReadyError, UnreachableError
from sparkserve.model.event import Observer
from sparkserve.model.node_state import RunStatus
from sparkserve.ops import launch as launch_ops
from sparkserve.ops import logs as logs_ops
from sparkserve.ops import status as status_ops
from sparkserve.ops import stop as stop_ops
from sparkserve.ops.doors import Doors
from sparkserve.ops.target import Target, resolve
from tests.cli.conftest import Run
from tests.report import launch_events, runs
from tests.report.test_plan_view import planned

ID = runs.RUN_ID


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests that reached the use cases; each answers with a run of two ranks."""
    requests: list[Any] = []

    def launch(request: launch_ops.LaunchRequest, doors: Doors, observer: Observer) -> Any:
        requests.append(request)
        for event in launch_events.served().events:
            observer.event(event)
        plan, specs = planned(2)
        resolved = resolve(Target(profile="local-demo"), {})
        record = None if request.dry_run else runs.record()
        return launch_ops.LaunchResult(resolved, (), plan, specs, record)

    def status(request: status_ops.StatusRequest, doors: Doors) -> RunStatus:
        requests.append(request)
        return runs.status()

    def stop(request: stop_ops.StopRequest, doors: Doors, observer: Observer) -> Any:
        requests.append(request)
        nodes = (stop_ops.NodeStop("spark1", "running"), stop_ops.NodeStop("spark2", "stopped"))
        return stop_ops.StopResult(ID, nodes)

    def logs(
        request: logs_ops.LogsRequest,
        doors: Doors,
        on_line: Callable[[str, int, str], None],
        cancel: threading.Event,
    ) -> Any:
        requests.append(request)
        on_line("spark1", 0, "Load weight begin.")
        on_line("spark2", 1, 'a "quoted" line, ünïcode')
        return runs.record()

    monkeypatch.setattr(launch_ops, "run", launch)
    monkeypatch.setattr(status_ops, "run", status)
    monkeypatch.setattr(stop_ops, "run", stop)
    monkeypatch.setattr(logs_ops, "run", logs)
    return requests


class TestLaunch:
    """``sparkserve launch``."""

    def test_serving(self, run: Run, asked: list[Any]) -> None:
        assert run("launch").golden("launch").code == 0
        assert asked[1] == status_ops.StatusRequest(status_ops.RunChoice(ID))

    def test_dry_run(self, run: Run, asked: list[Any]) -> None:
        assert run("launch", "-n").golden("launch-dry-run").code == 0
        assert asked[0].dry_run
        assert len(asked) == 1, "a dry run asks nobody for a status"

    def test_quiet_is_the_address(self, run: Run, asked: list[Any]) -> None:
        outcome = run("launch", "-q")
        assert (outcome.out, outcome.err) == ("http://127.0.0.1:8888/v1\n", "")

    def test_programs_get_events_and_then_the_result(self, run: Run, asked: list[Any]) -> None:
        records = run("launch", "--json").records
        events = launch_events.served().events
        assert [record["message"] for record in records[:-1]] == [e.message for e in events]
        assert {record["schema_version"] for record in records} == {1}
        result = records[-1]
        assert (result["kind"], result["run_id"], result["data"]["ok"]) == ("result", ID, True)
        assert result["data"]["record"]["answer"].strip() == "The capital of France is Paris."
        assert RunStatus.model_validate(result["data"]["status"]) == runs.status()

    def test_programs_get_the_plan_of_a_dry_run(self, run: Run, asked: list[Any]) -> None:
        result = run("launch", "--dry-run", "--json").records[-1]
        assert result["data"]["differences"]["argv"] == {"--node-rank": ["0", "1"]}
        assert result["run_id"] is None

    def test_nodes_that_do_not_answer_right_after_it_do_not_spoil_it(
        self, run: Run, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(*_: object) -> None:
            raise UnreachableError("spark2", "gone")

        monkeypatch.setattr(status_ops, "run", lost)
        outcome = run("launch")
        assert outcome.code == 0
        assert "serving tiny at" in outcome.out

    def test_options_of_other_launchers_become_profile_values(
        self, run: Run, asked: list[Any]
    ) -> None:
        run("launch", "--tensor-parallel", "4", "--gpu-mem", "0.8", "--max-model-len", "8192")
        run("launch", "--tp", "4", "--mem-fraction-static", "0.8", "--context-length", "8192")
        first, second = (one.target.values for one in asked if hasattr(one, "target"))
        expected = {
            "parallel": {"tp": 4},
            "context": {"mem_fraction_static": 0.8, "length_tokens": 8192},
        }
        assert first == second == expected

    def test_options_become_the_request(self, run: Run, asked: list[Any], tmp_path: Path) -> None:
        run(
            *("launch", "-p", "x", "-H", "a,b", "-H", "c", "--nodes", "3", "-o", "k=1"),
            *("--set", "l=2", "--ensure", "--port", "9000", "--served-model-name", "m"),
        )
        request = asked[0]
        assert request.ensure
        assert not request.dry_run
        assert request.target == Target(
            profile="x",
            hosts=("a", "b", "c"),
            nodes=3,
            settings=("k=1", "l=2"),
            values={"serving": {"port": 9000}, "model": {"served_name": "m"}},
        )
        run("launch", "--hosts-file", str(tmp_path / "hosts"), "-c", "lab")
        other = next(one for one in asked[1:] if hasattr(one, "target"))
        assert (other.target.hosts_file, other.target.cluster) == (tmp_path / "hosts", "lab")

    def test_values_of_options_reach_the_profile(self) -> None:
        values = {"serving": {"port": 9000}}
        resolved = resolve(Target(profile="local-demo", values=values), {})
        assert resolved.profile.profile.serving.port == 9000

    def test_failure_after_progress(
        self, run: Run, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(request: object, doors: object, observer: Observer) -> None:
            for event in launch_events.failed().events:
                observer.event(event)
            raise NotReadyError(
                "rank 1 on spark2: the engine ended with signal 9\nits last lines:\n  Killed",
                hint=f"sparkserve logs spark2 --run {ID}",
            )

        monkeypatch.setattr(launch_ops, "run", fail)
        assert run("launch").golden("launch-failed").code == 6


class TestStatus:
    """``sparkserve status``."""

    @pytest.mark.parametrize("columns", [80, 160])
    def test_serving(self, run: Run, asked: list[Any], columns: int) -> None:
        run("status", columns=columns).golden(f"status-{columns}")

    def test_choice(self, run: Run, asked: list[Any]) -> None:
        run("status", "--run", "2026", "--cluster", "lab")
        assert asked[0].choice == status_ops.RunChoice("2026", "lab")

    def test_json_and_quiet(self, run: Run, asked: list[Any]) -> None:
        assert RunStatus.model_validate(run("status", "--json").data["status"]) == runs.status()
        assert run("status", "-q").out == "serving\n"

    @pytest.mark.parametrize(
        ("outcome", "code"),
        [
            ("serving", 0), ("launching", 0), ("stopped", 0), ("interrupted", 0),
            ("failed", 1), ("unhealthy", 1), ("unreachable", 3),
        ],
    )  # fmt: skip
    def test_exit_code_tells_the_outcome(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, outcome: str, code: int
    ) -> None:
        monkeypatch.setattr(status_ops, "run", lambda *_: runs.status(outcome=outcome))
        assert run("status").code == code


class TestStop:
    """``sparkserve stop``."""

    def test_clean(self, run: Run, asked: list[Any]) -> None:
        assert run("stop", "2026").golden("stop").code == 0
        assert asked[0].choice.run_id == "2026"
        assert run("stop", "--run", "2026", "2026").code == 0
        assert run("stop", "-q").out == ""

    def test_json(self, run: Run, asked: list[Any]) -> None:
        data = run("stop", "--json").data
        assert data["clean"]
        assert data["nodes"][0] == {
            "node": "spark1", "was": "running", "survivors": [], "error": None,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("left", "code", "words"),
        [
            (stop_ops.NodeStop("spark2", "unknown", error="no answer"), 3, "unknown: no answer"),
            (stop_ops.NodeStop("spark2", "running", (7, 8)), 1, "processes 7, 8 cannot be ended"),
        ],
    )
    def test_what_is_left_is_told_in_every_mode(
        self,
        run: Run,
        monkeypatch: pytest.MonkeyPatch,
        left: stop_ops.NodeStop,
        code: int,
        words: str,
    ) -> None:
        result = stop_ops.StopResult(ID, (stop_ops.NodeStop("spark1", "running"), left))
        monkeypatch.setattr(stop_ops, "run", lambda *_: result)
        human, quiet = run("stop"), run("stop", "-q")
        assert (human.code, quiet.code) == (code, code)
        assert f"not wholly stopped {ID}" in human.out
        assert words in human.out
        assert quiet.err == f"warning: spark2: {words}\n"
        assert not run("stop", "--json").data["clean"]


class TestLogs:
    """``sparkserve logs``."""

    def test_all_nodes_are_named(self, run: Run, asked: list[Any]) -> None:
        run("logs").golden("logs")
        assert asked[0] == logs_ops.LogsRequest(logs_ops.NEWEST)

    def test_one_node_is_not(self, run: Run, asked: list[Any]) -> None:
        outcome = run("logs", "spark1", "--lines", "5", "-f", "--guard", "--run", "2026")
        assert outcome.out.startswith("Load weight begin.\n")
        assert asked[0] == logs_ops.LogsRequest(
            logs_ops.RunChoice("2026"), node="spark1", lines=5, follow=True, guard=True
        )

    def test_programs_get_a_line_each(self, run: Run, asked: list[Any]) -> None:
        assert run("logs", "--json").records[1] == {
            "schema_version": 1, "node": "spark2", "rank": 1, "line": 'a "quoted" line, ünïcode',
        }  # fmt: skip
