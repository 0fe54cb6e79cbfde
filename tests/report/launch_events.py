"""A launch on two nodes as the events tell it, with times that are always the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sparkserve.model.event import Event, EventKind

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
RUN_ID = "20261130-120000-pair-4f2a"


class Story:
    """Events one after the other; each says how long after the start it happened."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.run_id: str | None = None

    def add(
        self,
        at_s: float,
        kind: EventKind,
        message: str = "",
        *,
        node: str | None = None,
        rank: int | None = None,
        data: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.events.append(
            Event(
                at=START + timedelta(seconds=at_s),
                kind=kind,
                run_id=self.run_id,
                node=node,
                rank=rank,
                message=message,
                data={**(data or {}), **more},
            )
        )

    def on_both(self, at_s: float, kind: EventKind, message: str, **data: Any) -> None:
        for rank in (0, 1):
            self.add(at_s, kind, message, node=f"spark{rank + 1}", rank=rank, **data)


def finding(**changes: Any) -> dict[str, Any]:
    """A passed check's data, with changes."""
    return {
        "code": "ENG_PORT_BUSY",
        "check_id": "PORT.FREE",
        "title": "the serving port is free",
        "node": "spark1",
        "outcome": "pass",
        "severity": "error",
        "fault_class": "config",
        "verdict": "PASS",
        "observed": "port 8888 is free",
        "expected": "",
        "why": "",
        "fix": "",
        "evidence": [],
        **changes,
    }


CLOCK = finding(
    code="CLK_SKEW",
    check_id="CLOCK.SYNC",
    title="clocks agree",
    node="spark2",
    outcome="fail",
    severity="warning",
    verdict="WARN",
    observed="the clock is 3.1 s behind",
    expected="less than 1 s",
    why="logs of several nodes cannot be put in order",
    fix="sudo timedatectl set-ntp true",
)
COUNTERS = {
    "at_s": 0.0,
    "log_bytes": 1000,
    "read_bytes": 13_207_024_435,
    "cpu_s": 12.0,
    "rss_bytes": 2 << 30,
    "memory_available_bytes": 98 << 30,
    "processes": 4,
    "engram_rows": None,
}


def begun() -> Story:
    """Up to the weights."""
    story = Story()
    story.add(0, "notice", "cluster lab")
    story.add(0, "notice", "profile pair: 2 nodes")
    story.add(0, "phase", "connect", nodes=2, number=1, of=7)
    story.add(0.2, "phase", "facts", number=2, of=7)
    story.add(1.0, "finding", "the serving port is free", node="spark1", data=finding())
    story.add(1.0, "finding", "clocks agree", node="spark2", data=CLOCK)
    story.run_id = RUN_ID
    story.add(1.1, "phase", "write specs", steps=4, number=3, of=7)
    story.add(
        1.2, "step", "write engine.json", node="spark1", id="put", state="begun", effect="reads"
    )
    story.add(
        1.3, "step", "write engine.json", node="spark1", id="put", state="done", effect="reads"
    )
    story.add(1.4, "phase", "start workers", steps=1, number=4, of=7)
    story.add(1.9, "phase", "start head", steps=1, number=5, of=7)
    state = {"state": "running", "reason": ""}
    story.on_both(2.1, "state", "running", data=state)
    story.add(2.4, "phase", "wait for the engine", steps=2, number=6, of=7)
    story.on_both(3.0, "log", "[2026-11-30 12:00:03] Load weight begin. avail mem=98.20 GB")
    story.on_both(3.0, "progress", "weights")
    story.on_both(4.0, "progress", "weights", data=COUNTERS)
    story.add(5.0, "progress", "weights 3/48", node="spark2", rank=1)
    story.add(
        40.0,
        "log",
        "Loading safetensors checkpoint shards:  37% Completed | 18/48 [00:35<01:00,  2.00s/it]",
        node="spark2",
        rank=1,
    )
    story.add(40.0, "progress", "weights 18/48", node="spark2", rank=1)
    return story


def served() -> Story:
    """To the end."""
    story = begun()
    story.on_both(70.0, "progress", "warm-up")
    story.on_both(71.0, "report", "scheduler", pid=7)
    story.add(80.0, "phase", "ask a question", steps=1, number=7, of=7)
    story.add(81.5, "notice", "answer: The capital of France is Paris.")
    return story


def failed() -> Story:
    """Rank 1 dies while the weights are read."""
    story = begun()
    story.add(
        41.0,
        "state",
        "failed",
        node="spark2",
        rank=1,
        data={"state": "failed", "reason": "the engine ended with signal 9", "origin_rank": 1},
    )
    follows = {"state": "failed", "reason": "rank 1: the engine ended", "origin_rank": 1}
    story.add(41.5, "state", "failed", node="spark1", rank=0, data=follows)
    story.add(
        42.0,
        "step",
        "equal install reports of 2 ranks",
        node="spark1",
        id="await-reports",
        state="failed",
        error="rank 1 on spark2: the engine ended with signal 9",
        effect="reads",
    )
    story.add(42.0, "phase", "stop what was started")
    story.on_both(43.0, "state", "was stopped, nothing left", clean=True)
    return story


def interrupted() -> Story:
    """Ctrl-C while the weights are read."""
    story = begun()
    story.add(44.0, "phase", "stop what was started")
    story.on_both(45.0, "state", "was running, nothing left", clean=True)
    return story
