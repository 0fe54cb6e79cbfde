"""A launch that fails stops what it started, and nothing that served before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkserve.engine import watcher
from sparkserve.engine.watcher import PATTERNS
from sparkserve.errors import NotReadyError
from sparkserve.model.plan import AwaitReports, Plan, Stage, Step
from sparkserve.model.record import RunOutcome, RunRecord
from sparkserve.ops.bring_up import BringUp
from sparkserve.ops.doors import Emitter, utc_now
from sparkserve.runs import RunDirectory
from tests import scenes
from tests.ops.told import Heard, ToldHost, line, state
from tests.report import runs

KEY = 'sk-"secret"-0123'
WAITS = Plan(
    verb="launch",
    run_id="r",
    stages=(
        Stage(
            title="wait for the engine",
            steps=(
                Step(
                    id="reports",
                    node="spark1",
                    title="reports",
                    effect="reads",
                    action=AwaitReports(ranks=1),
                    done_when="told",
                ),
            ),
        ),
    ),
)


def record(outcome: RunOutcome) -> RunRecord:
    profile = scenes.profile(limits={"no_progress_s": 0.3})
    return runs.record(1, outcome=outcome, profile=profile, pythons={"spark1": "/py"})


def failed(host: ToldHost, directory: RunDirectory, outcome: RunOutcome) -> tuple[str, Heard]:
    """Carry out the waits, which never come true; the error's message and all events."""
    heard = Heard()
    bring_up = BringUp({"spark1": host}, Emitter([heard], utc_now, secrets=(KEY,)), KEY)
    with pytest.raises(NotReadyError) as caught:
        bring_up.carry_out(directory, WAITS, record(outcome))
    return caught.value.message, heard


def stops(host: ToldHost) -> int:
    return sum("stop" in argv for argv in host.asked)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory("r", tmp_path)
    made.write_record(record("serving"))
    return made


def test_run_that_this_launch_started_is_stopped_and_recorded_as_failed(
    directory: RunDirectory,
) -> None:
    host = ToldHost("spark1")
    message, _ = failed(host, directory, "launching")
    assert "no rank logged or read anything" in message
    assert stops(host) == 1
    assert directory.record().outcome == "failed"


def test_run_that_served_before_is_left_alone(directory: RunDirectory) -> None:
    host = ToldHost("spark1")
    failed(host, directory, "serving")
    assert stops(host) == 0
    assert directory.record() == record("serving")


def test_run_that_served_before_and_has_died_is_recorded_as_failed(directory: RunDirectory) -> None:
    host = ToldHost("spark1", [state(0, "failed", origin=0, reason="engine killed by SIGKILL")])
    message, _ = failed(host, directory, "serving")
    assert "rank 0 on spark1: engine killed by SIGKILL" in message
    assert directory.record().outcome == "failed"


def test_log_of_a_run_that_serves_is_not_read_again_from_its_start(directory: RunDirectory) -> None:
    for outcome in ("launching", "serving"):
        host = ToldHost("spark1")
        failed(host, directory, outcome)
        assert ("--new" in host.asked[0]) == (outcome == "serving")


def test_record_that_cannot_be_written_keeps_no_engine_running(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    host = ToldHost("spark1")
    message, heard = failed(host, RunDirectory("r", tmp_path / "file" / "r"), "launching")
    assert "no rank logged or read anything" in message
    assert stops(host) == 1
    assert any("is not recorded: cannot write" in event.message for event in heard.events)


def test_key_that_an_engine_logs_reaches_neither_message_nor_record_nor_event(
    directory: RunDirectory,
) -> None:
    host = ToldHost(
        "spark1",
        [
            line("log", f"server_args=ServerArgs(api_key='{KEY}')"),
            state(0, "failed", origin=0, reason=f"engine said {KEY}"),
        ],
    )
    message, heard = failed(host, directory, "launching")
    told = [message, directory.record().model_dump_json(), *map(repr, heard.events)]
    assert "api_key='***'" in message
    assert directory.record().failure is not None
    assert not any("secret" in text for text in told)


def test_known_cause_comes_with_what_helps(directory: RunDirectory) -> None:
    host = ToldHost(
        "spark1",
        [
            line("log", "OSError: [Errno 98] Address already in use"),
            state(0, "failed", origin=0, reason="engine exited with code 1"),
        ],
    )
    heard = Heard()
    bring_up = BringUp({"spark1": host}, Emitter([heard], utc_now), None)
    with pytest.raises(NotReadyError) as caught:
        bring_up.carry_out(directory, WAITS, record("launching"))
    assert caught.value.hint == f"ss -ltnp\nsparkserve logs spark1 --run {runs.RUN_ID}"


def test_pool_that_cannot_hold_one_context_ends_the_launch_at_the_line_that_says_it(
    directory: RunDirectory,
) -> None:
    profile = scenes.profile(context={"length_tokens": 4096}, limits={"no_progress_s": 30.0})
    host = ToldHost("spark1", [line("log", "bytes_per_full_token=1670.75, full_token=4095")])
    bring_up = BringUp({"spark1": host}, Emitter([Heard()], utc_now), None)
    told = runs.record(1, outcome="launching", profile=profile, pythons={"spark1": "/py"})
    with pytest.raises(NotReadyError, match=r"holds 4,095 tokens, less than one context of 4,096"):
        bring_up.carry_out(directory, WAITS, told)
    assert stops(host) == 1


def test_launch_that_is_given_up_names_what_its_ranks_stand_in(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(p for p in PATTERNS if p.name == "allreduce-across-nodes")
    monkeypatch.setattr(watcher, "PATTERNS", (replace(row, stall_s=0.1),))
    host = ToldHost("spark1", [line("log", "CustomAllreduce is disabled because this process "
                                    "group spans across nodes.")])  # fmt: skip
    message, heard = failed(host, directory, "launching")
    assert "no rank logged or read anything" in message
    assert "spark1: the ranks wait for each other" in message
    assert any("stands still after" in event.message for event in heard.events)
