"""A node that tells what a test wrote down, and remembers what it was asked to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkserve.model.event import Event
from sparkserve.transport.host import ForwardedPort, Result


def line(kind: str, value: Any) -> str:
    """One line of ``node follow``."""
    return json.dumps({"kind": kind, "value": value})


def state(rank: int, name: str, *, origin: int | None = None, reason: str = "") -> str:
    """The line by which a guard's state is told."""
    return line(
        "state",
        {
            "run_id": "r", "rank": rank, "node": f"spark{rank + 1}", "state": name, "at_s": 1.0,
            "guard_pid": 7, "guard_start_ticks": 8, "reason": reason, "origin_rank": origin,
        },
    )  # fmt: skip


@dataclass
class ToldHost:
    """A Host whose follower says these lines, in turns with the other hosts' where they wait."""

    name: str
    lines: Sequence[str | threading.Event] = ()
    asked: list[tuple[str, ...]] = field(default_factory=list)
    output: str = '{"was": "running", "survivors": []}'

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float) -> Result:
        self.asked.append(tuple(argv))
        return Result(self.name, "", "exited", 0, self.output, "", 0.0)

    def script(self, text: str, *, timeout_s: float) -> Result:
        return self.run((text,), timeout_s=timeout_s)

    def stream(
        self, argv: Sequence[str], *, on_line: Callable[[str], None], cancel: threading.Event
    ) -> Result:
        self.asked.append(tuple(argv))
        for one in self.lines:
            if isinstance(one, threading.Event):
                assert one.wait(30)
            else:
                on_line(one)
        assert cancel.wait(60)
        return Result(self.name, "", "exited", 0, "", "", 0.0)

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        raise AssertionError("nothing is put")

    def forward(self, remote_port: int) -> ForwardedPort:
        raise AssertionError("nothing is forwarded")

    def close(self) -> None:
        return


@dataclass
class Heard:
    """An observer that keeps what it hears."""

    events: list[Event] = field(default_factory=list)

    def event(self, event: Event) -> None:
        self.events.append(event)
