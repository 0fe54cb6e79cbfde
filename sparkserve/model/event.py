"""Events: the one form in which anything that happens is shown, stored and replayed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Protocol

from pydantic import Field

from sparkserve.model.base import Model

EventKind = Literal[
    "phase",      # the launch entered a new phase (message = its title)
    "step",       # a plan step began, finished or failed (data.state)
    "finding",    # a check's judgement (data = the finding)
    "log",        # one line of a rank's engine log (message = the line)
    "progress",   # a rank moved: counters in data
    "state",      # a rank's state changed (data.state)
    "report",     # an install report arrived (data = the report)
    "notice",     # something the user should know
    "result",     # the outcome of the command
]  # fmt: skip


class Event(Model):
    """One thing that happened; one line of ``events.ndjson`` and of ``--json`` output."""

    schema_version: Literal[1] = 1
    at: datetime
    """UTC, aware."""
    kind: EventKind
    run_id: str | None = None
    node: str | None = None
    rank: int | None = None
    message: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Observer(Protocol):
    """Receives events as they happen; may be called from several threads."""

    def event(self, event: Event) -> None:
        """Take one event; must not raise and must not block for long."""
