"""Ask or end a run on this node: ``status``, ``stop``, ``runs``; answers are JSON on stdout."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

from sparkserve.model.run_files import ENGINE_LOG, SPEC
from sparkserve.node import follow, keys, processes
from sparkserve.node.follow import read_state

_STOP_LIMIT_S = 20.0
_POLL_S = 0.05
_OUR_QUESTION = re.compile(r'"GET /(health|metrics)\b')


def status(run_dir: Path) -> dict[str, Any]:
    """State, counters and last log line of one run directory; ``state`` None = unknown here."""
    state = read_state(run_dir)
    if state is None:
        return {"state": None, "progress": None, "last_line": ""}
    alive = follow.guard_lives(state)
    if not alive and state["state"] not in ("stopped", "failed", "refused"):
        state = state | {"state": "failed", "reason": "the guard died"}
    counters = follow.progress(run_dir, state["guard_pid"]) if alive else None
    return {"state": state, "progress": counters, "last_line": last_line(run_dir)}


def last_line(run_dir: Path, *, window_bytes: int = 8192) -> str:
    """The engine log's last line that says something, or an empty text.

    Our own questions for health and counters leave lines too; they tell nobody anything.
    """
    path = run_dir / ENGINE_LOG
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - window_bytes))
        lines = file.read().decode(errors="replace").splitlines()
    return next((s for s in reversed(lines) if s.strip() and not _OUR_QUESTION.search(s)), "")


def stop(run_dir: Path, *, gentle: bool = True) -> dict[str, Any]:
    """End a run on this node through its guard, or directly where the guard is gone.

    gentle: running requests may finish.

    Only processes that descend from the guard or carry the run's engine.json are touched. The
    run's keys are removed; logs, reports and specs stay.

    Returns:
        ``{"was": state before, "ended": number of processes ended directly, "survivors": [pid]}``
    """
    state = read_state(run_dir)
    was = state["state"] if state is not None else "absent"
    if state is not None:
        guard = processes.living(state["guard_pid"], state["guard_start_ticks"])
        if guard is not None:
            processes.send([guard], signal.SIGTERM if gentle else signal.SIGINT)
            _await_end(state)
            # A guard that does not go holds the node, and whoever follows it waits for ever.
            processes.end([guard], grace_s=0.0)
    left: dict[int, processes.Process] = {}

    def find() -> list[processes.Process]:
        found = processes.carrying(str(run_dir / SPEC))
        left.update({process.pid: process for process in found})
        return found

    survivors = processes.end_all(find, grace_s=1.0)
    keys.forget(run_dir)
    return {"was": was, "ended": len(left), "survivors": [p.pid for p in survivors]}


def _await_end(state: dict[str, Any]) -> None:
    """Wait for the guard itself, not for its word: until it is gone it holds the node."""
    deadline = time.monotonic() + _STOP_LIMIT_S
    while time.monotonic() < deadline and follow.guard_lives(state):
        time.sleep(_POLL_S)


def runs(root: Path) -> list[dict[str, Any]]:
    """Every run below ``<root>/state/runs`` with its state, newest first."""
    found = []
    for path in sorted((root / "state" / "runs").glob("*"), reverse=True):
        state = read_state(path)
        if state is not None:
            alive = follow.guard_lives(state)
            found.append({"run_dir": str(path), "alive": alive, "state": state})
    return found
