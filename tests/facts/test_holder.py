"""What the shell probe says of a node's holder is what the kernel's lock says."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from sparkserve.facts import runtime
from sparkserve.facts.probe import Context, compose, interpret, split
from sparkserve.facts.runtime import HolderFacts
from sparkserve.node import guard, processes
from tests.node.harness import SLEEPER, Run

NOBODY = HolderFacts(run_id=None, guard_pid=None)


def asked(root: Path) -> HolderFacts:
    text = compose([runtime.HOLDER], Context(root=str(root)), "@@mark")
    answer = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=True)
    fact = interpret(runtime.HOLDER, split(answer.stdout, "@@mark").get("runtime.holder"))
    assert isinstance(fact, HolderFacts), fact
    return fact


def locked(root: Path) -> bool:
    with (root / "state" / "serving.lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "a 'root' with $(blanks)")


def test_holder_is_told_while_its_guard_lives_and_no_longer(run: Run) -> None:
    try:
        (rank,) = run.start([SLEEPER])
        root = Path(rank.spec.root)
        assert (asked(root).run_id, locked(root)) == ("run-1", True)
        rank.signal_guard(signal.SIGKILL)
        assert rank.process is not None
        rank.process.wait()
        assert (asked(root), locked(root)) == (NOBODY, False)
    finally:
        run.close()


def test_unlocked_node_has_no_holder_even_where_the_pid_lives_again(run: Run) -> None:
    (rank,) = run.make([SLEEPER])
    root = Path(rank.spec.root)
    os.close(guard.hold_node(rank.spec))
    note = json.loads((root / "state" / "serving.lock").read_text())
    me = processes.read_process(os.getpid())
    assert me is not None
    assert (note["pid"], note["start_ticks"]) == (me.pid, me.start_ticks)
    (root / "state" / "serving.lock").write_text(json.dumps(note | {"start_ticks": 1}))
    assert (asked(root), locked(root)) == (NOBODY, False)


def test_node_that_never_served_has_no_holder(tmp_path: Path) -> None:
    assert asked(tmp_path) == NOBODY
