"""What a launch's events add up to: phases, ranks, findings. Pure; both launch views draw it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sparkserve.model.event import Event
from sparkserve.model.finding import Finding
from sparkserve.model.node_state import FINAL_STATES
from sparkserve.report.text import one_line

PhaseEnd = Literal["done", "failed", "interrupted"]


@dataclass
class Phase:
    """One phase of the command."""

    title: str
    number: int | None
    """None for what is no step on the way, such as cleaning up."""
    begun_at: datetime
    ended_at: datetime | None = None
    end: PhaseEnd | None = None

    def elapsed_s(self, now: datetime) -> float:
        """How long it took, or has taken until now."""
        return ((self.ended_at or now) - self.begun_at).total_seconds()


@dataclass
class Rank:
    """One rank as far as its events tell."""

    rank: int
    node: str
    begun_at: datetime
    state: str = "waiting"
    phase: str = ""
    read_bytes: int | None = None
    memory_available_bytes: int | None = None
    engram_rows: int | None = None
    last_line: str = ""
    reason: str = ""
    reports: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more comes from it."""
        return self.state in FINAL_STATES

    @property
    def doing(self) -> str:
        """State and phase in one word or two, such as ``weights 3/48``."""
        return self.phase if self.state == "running" and self.phase else self.state


@dataclass
class LaunchState:
    """The whole launch; ``take`` is called for every event in turn."""

    run_id: str | None = None
    total_phases: int | None = None
    """None until the first phase told it."""
    phases: list[Phase] = field(default_factory=list)
    ranks: dict[int, Rank] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    failed_step: bool = False

    @property
    def phase(self) -> Phase | None:
        """The phase under way."""
        return self.phases[-1] if self.phases and self.phases[-1].end is None else None

    def take(self, event: Event) -> None:
        """Add one event."""
        self.run_id = event.run_id or self.run_id
        if event.kind == "phase":
            self._phase(event)
        elif event.kind == "step" and event.data.get("state") == "failed":
            self.failed_step = True
        elif event.kind == "finding":
            self.findings.append(Finding.model_validate(event.data))
        elif event.rank is not None and event.node is not None:
            self._rank(event)

    def finish(self, now: datetime, end: PhaseEnd = "done") -> Phase | None:
        """End the phase under way; returns it, or None where none was."""
        phase = self.phase
        if phase is not None:
            phase.ended_at, phase.end = now, end
        return phase

    def leave(self, kind: type[BaseException] | None, now: datetime) -> Phase | None:
        """End the phase under way as the launch itself ended; kind: its exception, if any."""
        phase = self.phase
        # Cleaning up was done even though the launch it belongs to was not.
        if kind is None or phase is None or phase.number is None:
            return self.finish(now)
        return self.finish(now, "failed" if issubclass(kind, Exception) else "interrupted")

    def _phase(self, event: Event) -> None:
        number = event.data.get("number")
        end: PhaseEnd = "done"
        if number is None:
            end = "failed" if self.failed_step else "interrupted"
        self.finish(event.at, end)
        self.total_phases = event.data.get("of", self.total_phases)
        self.phases.append(Phase(event.message, number, event.at))

    def _rank(self, event: Event) -> None:
        number, node = event.rank or 0, event.node or ""
        rank = self.ranks.setdefault(number, Rank(number, node, event.at))
        if event.kind == "log":
            rank.last_line = one_line(event.message) or rank.last_line
        elif event.kind == "progress":
            rank.phase = event.message or rank.phase
            self._counters(rank, event.data)
        elif event.kind == "state" and "state" in event.data:
            rank.state = str(event.data["state"])
            rank.reason = str(event.data.get("reason", ""))
        elif event.kind == "report":
            rank.reports += 1

    @staticmethod
    def _counters(rank: Rank, data: dict[str, Any]) -> None:
        if not data:
            return
        rank.read_bytes = data.get("read_bytes")
        rank.memory_available_bytes = data.get("memory_available_bytes")
        rows = data.get("engram_rows")
        rank.engram_rows = rank.engram_rows if rows is None else rows
