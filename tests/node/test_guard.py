"""A guard ends its rank, and with it the run, whatever happens to engine, peer or controller."""

from __future__ import annotations

import os
import signal

import pytest

from sparkserve.model.engine_spec import Expectations
from sparkserve.node import control
from tests.node.harness import SLEEPER, Rank, Run
from tests.testbed.shell import wait_until

GRANDCHILD = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("engine up", flush=True); time.sleep(600)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("engine up", flush=True); time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("engine up", flush=True)
while True: time.sleep(1)
"""


def test_engine_gets_its_arguments_and_the_spec_environment_only(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED_FROM_OPERATOR", "yes")
    program = (
        "import os; print(os.environ['MARK'], os.environ['SPARKSERVE_ENGINE_SPEC'],"
        " 'LEAKED_FROM_OPERATOR' in os.environ, flush=True); import time; time.sleep(600)"
    )
    (rank,) = run.start([program])
    rank.wait_log(f"set-by-spec {rank.spec_path} False")


def test_engine_that_exits_ends_the_run_as_failed_with_its_code(run: Run) -> None:
    (rank,) = run.start(["import sys; print('bye', flush=True); sys.exit(3)"])
    state = rank.wait_state("failed")
    assert state["reason"] == "engine exited with code 3"
    assert state["exit_code"] == 3
    assert state["origin_rank"] == 0


def test_engine_that_ends_well_is_a_failure_too(run: Run) -> None:
    (rank,) = run.start(["print('done')"])
    assert rank.wait_state("failed")["reason"] == "engine exited with code 0"


def test_engine_killed_by_a_signal_is_named_by_the_signal(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    os.kill(rank.state["engine_pid"], signal.SIGKILL)
    assert rank.wait_state("failed")["reason"] == "engine killed by SIGKILL"


@pytest.mark.parametrize("program", [GRANDCHILD, DAEMON, STUBBORN])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_of_the_engine_survives_a_stop(
    run: Run, program: str, number: signal.Signals
) -> None:
    (rank,) = run.start([program])
    rank.wait_log("engine up")
    rank.signal_guard(number)
    state = rank.wait_state("stopped")
    assert state["reason"] == "stopped on request"
    rank.wait_gone()


DRAINING = """
import signal, sys, time
def drain(*_):
    time.sleep(2)
    print("last reply sent", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
print("engine up", flush=True)
while True: time.sleep(1)
"""


@pytest.mark.parametrize(("number", "drained"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_gentle_stop_lets_replies_finish_and_a_quick_one_does_not(
    run: Run, number: signal.Signals, drained: bool
) -> None:
    (rank,) = run.start([DRAINING])
    rank.wait_log("engine up")
    rank.signal_guard(number)
    rank.wait_state("stopped")
    assert ("last reply sent" in rank.log) is drained


@pytest.mark.parametrize("guard_lives", [True, False])
def test_keys_of_a_run_do_not_outlive_it(run: Run, guard_lives: bool) -> None:
    ranks = run.start([SLEEPER, SLEEPER])
    wait_joined(ranks)
    head = ranks[0]
    (head.run_dir / "engine.yaml").write_text("api-key: sk-1")
    if not guard_lives:
        head.signal_guard(signal.SIGKILL)
        assert head.process is not None
        head.process.wait()
    control.stop(head.run_dir)
    left = {path.name for path in head.run_dir.iterdir()}
    assert not left & {"engine.yaml", "guard.key"}
    assert left >= {"engine.json", "engine.log", "guard.log", "state.json"}


def test_engine_dies_with_its_guard(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    rank.wait_log("engine up")
    rank.signal_guard(signal.SIGKILL)
    rank.wait_gone()


def test_death_of_one_rank_stops_every_rank_within_two_seconds(run: Run) -> None:
    ranks = run.start([SLEEPER, SLEEPER, SLEEPER])
    for rank in ranks:
        rank.wait_log("engine up")
    os.kill(ranks[1].state["engine_pid"], signal.SIGKILL)
    states = [rank.wait_state("failed") for rank in ranks]
    died_at_s = min(state["at_s"] for state in states)
    # The requirement itself, by the guards' own clocks: two seconds from death to silence.
    assert max(state["at_s"] for state in states) - died_at_s < 2.0
    assert [state["origin_rank"] for state in states] == [1, 1, 1]
    for rank in ranks:
        rank.wait_gone()


def test_stop_on_any_rank_stops_the_others_as_stopped(run: Run) -> None:
    ranks = run.start([SLEEPER, SLEEPER])
    wait_joined(ranks)
    ranks[1].signal_guard(signal.SIGTERM)
    assert [rank.wait_state("stopped", "failed")["state"] for rank in ranks] == [
        "stopped",
        "stopped",
    ]


def test_guard_that_is_killed_counts_as_a_lost_rank(run: Run) -> None:
    ranks = run.start([SLEEPER, SLEEPER])
    for rank in ranks:
        rank.wait_log("engine up")
    wait_joined(ranks)
    ranks[1].signal_guard(signal.SIGKILL)
    state = ranks[0].wait_state("failed")
    assert state["origin_rank"] == 1
    assert "connection to its guard broke" in state["reason"]
    ranks[1].wait_gone()


@pytest.mark.parametrize("silent", [0, 1])
def test_peer_that_falls_silent_is_lost(run: Run, silent: int) -> None:
    ranks = run.start([SLEEPER, SLEEPER])
    for rank in ranks:
        rank.wait_log("engine up")
    wait_joined(ranks)
    ranks[silent].signal_guard(signal.SIGSTOP)
    state = ranks[1 - silent].wait_state("failed")
    assert state["origin_rank"] == silent
    assert "silent for 2 s" in state["reason"]


def wait_joined(ranks: list[Rank]) -> None:
    """Wait until rank 0's guard has admitted the worker's."""
    guard_log = ranks[0].run_dir / "guard.log"
    wait_until(
        lambda: "rank 1 joined" in guard_log.read_text(), what="rank 1 joined", deadline_s=30
    )


def test_rank_that_never_joins_ends_the_run(run: Run) -> None:
    head, _ = run.make([SLEEPER, SLEEPER], guard={"join_timeout_s": 1.0})
    head.start()
    state = head.wait_state("failed")
    assert state["origin_rank"] == 1
    assert "did not join within 1 s" in state["reason"]


def test_guard_with_another_key_is_not_admitted(run: Run) -> None:
    head, worker = run.make([SLEEPER, SLEEPER], guard={"join_timeout_s": 2.0})
    worker.key = "cd" * 32
    head.start()
    worker.start()
    assert "did not join" in head.wait_state("failed")["reason"]
    assert "lost" in worker.wait_state("failed")["reason"]


def test_second_run_on_a_node_is_refused_and_the_first_lives_on(run: Run) -> None:
    (first,) = run.start([SLEEPER])
    run_dir = first.run_dir.parent / "run-2"
    other = type(first)(
        first.spec.model_copy(update={"run_id": "run-2", "run_dir": str(run_dir)})
    ).start()
    try:
        state = other.wait_state("refused")
        assert state["reason"] == "spark1 already serves run run-1"
        assert other.carriers == []
        assert first.state["state"] == "running"
    finally:
        other.close()


def test_low_memory_stops_the_run_and_says_both_figures(run: Run) -> None:
    (rank,) = run.start([SLEEPER], guard={"memory_floor_bytes": 1 << 50})
    reason = rank.wait_state("failed")["reason"]
    assert "stayed below the floor of 1024.0 TiB" in reason


def test_broken_promise_about_the_checkpoint_refuses_before_the_engine(run: Run) -> None:
    expect = Expectations(checkpoint=str(run.folder), checkpoint_files={"model.safetensors": 10})
    (rank,) = run.make([SLEEPER], expect=expect)
    (run.folder / "model.safetensors").write_bytes(b"123")
    rank.start()
    state = rank.wait_state("failed")
    assert state["exit_code"] == 78
    assert "model.safetensors has 3 bytes, expected 10 bytes" in rank.log
    assert "engine up" not in rank.log


def test_wrong_engine_version_refuses_with_both_versions(run: Run) -> None:
    (rank,) = run.make([SLEEPER], expect=Expectations(engine_version="9.9.9"))
    rank.start()
    assert rank.wait_state("failed")["exit_code"] == 78
    assert "expected 9.9.9" in rank.log


def test_key_that_cannot_be_read_refuses_before_the_engine(run: Run) -> None:
    head, _ = run.make([SLEEPER, SLEEPER])
    head.key = "not hexadecimal"
    head.start()
    assert head.process is not None
    assert head.process.wait(timeout=30) == 2
    assert "holds no key of this run's guards" in (head.run_dir / "guard.log").read_text()
    assert (head.log, head.carriers) == ("", [])


STARTS_ANOTHER_AS_IT_ENDS = """
import signal, subprocess, sys, time
def parting(*_):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, parting)
print("engine up", flush=True)
while True: time.sleep(1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_the_engine_starts_as_it_ends_is_ended_too(run: Run, number: signal.Signals) -> None:
    (rank,) = run.start([STARTS_ANOTHER_AS_IT_ENDS])
    rank.wait_log("engine up")
    rank.signal_guard(number)
    rank.wait_state("stopped")
    assert rank.carriers == []


def test_engine_killed_by_a_signal_without_a_name_ends_the_run(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    os.kill(rank.state["engine_pid"], signal.SIGRTMIN + 5)
    assert rank.wait_state("failed")["reason"] == f"engine killed by signal {signal.SIGRTMIN + 5}"


def test_missing_engine_program_is_named(run: Run) -> None:
    (rank,) = run.make([SLEEPER])
    rank.spec = rank.spec.model_copy(update={"argv": ("/nonexistent/python",)})
    rank.start()
    rank.wait_state("failed")
    assert "/nonexistent/python is not an executable file" in rank.log
