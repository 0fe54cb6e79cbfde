"""``node status`` and ``node stop`` touch what carries the run and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkserve.model.node_state import RankState
from sparkserve.node import control, guard, processes
from tests.node.harness import SLEEPER, Run


def test_stop_ends_a_run_through_its_guard(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    answer = control.stop(rank.run_dir)
    assert answer == {"was": "running", "ended": 0, "survivors": []}
    assert rank.state["state"] == "stopped"
    rank.wait_gone()


def test_stop_ends_a_guard_that_does_not_go_and_frees_the_node(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = run.start([SLEEPER])
    guard_pid = int(rank.state["guard_pid"])
    monkeypatch.setattr(control, "_STOP_LIMIT_S", 0.2)
    os.kill(guard_pid, signal.SIGSTOP)
    assert control.stop(rank.run_dir)["survivors"] == []
    rank.wait_gone()


def test_stop_twice_is_no_error(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    control.stop(rank.run_dir)
    assert control.stop(rank.run_dir)["was"] == "stopped"


def test_stop_of_an_unknown_run_says_absent(tmp_path: Path) -> None:
    assert control.stop(tmp_path / "nothing") == {"was": "absent", "ended": 0, "survivors": []}


def test_stop_without_a_guard_ends_what_carries_the_run_and_spares_the_rest(run: Run) -> None:
    (rank,) = run.make([SLEEPER])
    rank.run_dir.mkdir(parents=True)
    environment = {**os.environ, "SPARKSERVE_ENGINE_SPEC": str(rank.spec_path)}
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    carrier = subprocess.Popen(argv, env=environment)
    stranger = subprocess.Popen(
        argv, env={**environment, "SPARKSERVE_ENGINE_SPEC": f"{rank.spec_path}.other"}
    )
    try:
        while not rank.carriers:
            assert carrier.poll() is None
        assert control.stop(rank.run_dir)["ended"] == 1
        assert carrier.wait(timeout=30) == -signal.SIGTERM
        assert stranger.poll() is None
    finally:
        for process in (carrier, stranger):
            process.kill()
            process.wait()


@pytest.mark.parametrize("later", [0, 1])
def test_guards_pid_that_is_another_process_now_is_left_alone(run: Run, later: int) -> None:
    """After a reboot the pid of a guard may be anybody's; ``later`` 0 is the control."""
    (rank,) = run.make([SLEEPER])
    rank.run_dir.mkdir(parents=True)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        begun = processes.read_process(stranger.pid)
        assert begun is not None
        state = RankState(
            run_id="run-1",
            rank=0,
            node="spark1",
            state="running",
            at_s=0.0,
            guard_pid=stranger.pid,
            guard_start_ticks=begun.start_ticks + later,
        )
        (rank.run_dir / "state.json").write_text(state.model_dump_json())
        assert control.status(rank.run_dir)["state"]["state"] == ("failed" if later else "running")
        control.stop(rank.run_dir)
        assert (processes.living(stranger.pid, begun.start_ticks) is not None) == bool(later)
    finally:
        stranger.kill()
        stranger.wait()


def test_node_is_free_when_a_stop_returns(run: Run) -> None:
    head, *_ = run.make([SLEEPER] * 3, guard={"join_timeout_s": 0.5})
    head.start()
    # A guard stays for a while after a failure, to tell ranks that may still be on their way.
    head.wait_state("failed")
    assert control.stop(head.run_dir)["was"] == "failed"
    os.close(guard.hold_node(head.spec))


def test_state_that_is_not_one_is_no_state(run: Run) -> None:
    (rank,) = run.make([SLEEPER])
    rank.run_dir.mkdir(parents=True)
    for text in ("[]", "{}", '{"state": "running"}', "\udcff"):
        (rank.run_dir / "state.json").write_bytes(text.encode(errors="surrogateescape"))
        assert control.status(rank.run_dir)["state"] is None
        assert control.stop(rank.run_dir)["was"] == "absent"


def test_status_of_a_running_rank_holds_state_counters_and_last_line(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    rank.wait_log("engine up")
    answer = control.status(rank.run_dir)
    assert answer["state"]["state"] == "running"
    assert answer["progress"]["processes"] == 1
    assert answer["last_line"] == "engine up"


def test_status_of_a_dead_guard_is_failed(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    rank.signal_guard(signal.SIGKILL)
    assert rank.process is not None
    rank.process.wait()
    answer = control.status(rank.run_dir)
    assert (answer["state"]["state"], answer["progress"]) == ("failed", None)


def test_runs_lists_the_living_and_the_dead(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    (entry,) = control.runs(Path(rank.spec.root))
    assert (entry["alive"], entry["state"]["run_id"]) == (True, "run-1")


def test_last_line_passes_over_our_own_questions(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text(
        "Decode batch, #running-req: 1\n"
        'INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" 200 OK\n'
        'INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 200 OK\n\n'
    )
    assert control.last_line(tmp_path) == "Decode batch, #running-req: 1"
