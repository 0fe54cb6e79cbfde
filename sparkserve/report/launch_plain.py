"""A launch as lines that only ever grow: for pipes, log files and terminals that cannot move."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from types import TracebackType

from sparkserve.model.event import Event
from sparkserve.report.console import Console
from sparkserve.report.finding_view import summary_line
from sparkserve.report.launch_state import LaunchState, Phase, Rank
from sparkserve.report.narration import INDENT, lasting_lines, phase_head, phase_tail
from sparkserve.report.text import Line, Span, line
from sparkserve.units import format_bytes, format_duration

_EVERY_S = 15.0
"""How often a rank that only counts on is told again."""


class PlainLaunch:
    """An Observer that prints numbered phases and what happens in them.

    state: what the events add up to; None = that of a launch.
    """

    def __init__(self, console: Console, state: LaunchState | None = None) -> None:
        self._console = console
        self._lock = threading.RLock()
        self.state = state or LaunchState()
        self._open: Phase | None = None
        """The phase whose line has no end yet and is still the last line."""
        self._heard: tuple[datetime, float] | None = None
        """Time of the last event, and when it came by our own clock."""
        self._told: dict[int, tuple[str, datetime]] = {}

    def __enter__(self) -> PlainLaunch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._heard is not None:
                at, heard_s = self._heard
                silent = timedelta(seconds=time.monotonic() - heard_s)
                self._close(self.state.leave(kind, at + silent))

    def event(self, event: Event) -> None:
        """Take one event."""
        with self._lock:
            self._heard = event.at, time.monotonic()
            before = self.state.phase
            self.state.take(event)
            if event.kind == "phase":
                self._close(before)
                self._begin()
            else:
                self.lines(lasting_lines(event, verbosity=self._console.settings.verbosity))
            if event.kind == "progress" and event.rank is not None:
                self.tell_rank(self.state.ranks[event.rank], event.at)

    def _begin(self) -> None:
        phase = self.state.phase
        if phase is not None:
            self._open = phase
            self._console.progress(line(*phase_head(phase, self.state)).plain)

    def _close(self, phase: Phase | None) -> None:
        if phase is None or phase.ended_at is None:
            return
        tail = phase_tail(phase, phase.ended_at)
        if self._open is phase:
            self._console.say([tail])
        else:
            self._console.say([line(*phase_head(phase, self.state), *tail)])
        self._open = None
        if phase.title == "facts" and self.state.findings:
            self._console.say([summary_line(self.state.findings, indent=INDENT)])

    def lines(self, lines: list[Line]) -> None:
        """Print lines of their own below a phase that is under way."""
        if not lines:
            return
        if self._open is not None:
            self._console.progress("\n")
            self._open = None
        self._console.say(lines)

    def tell_rank(self, rank: Rank, at: datetime) -> None:
        """Tell where a rank stands: when its phase changes, and again at times."""
        doing, since = self._told.get(rank.rank, ("", at))
        waited_s = (at - since).total_seconds()
        if rank.ended or rank.doing in ("", "waiting"):
            return
        if _kind(doing) == _kind(rank.doing) and waited_s < _EVERY_S:
            return
        self._told[rank.rank] = (rank.doing, at)
        counters = [
            f"{format_bytes(rank.read_bytes)} read" if rank.read_bytes else "",
            f"{format_bytes(rank.memory_available_bytes)} memory free"
            if rank.memory_available_bytes
            else "",
        ]
        told = ", ".join(part for part in counters if part)
        elapsed = format_duration((at - rank.begun_at).total_seconds())
        detail = f"  {told}" if told else ""
        head = f"{' ' * INDENT}rank {rank.rank} {rank.node}: {rank.doing}"
        self.lines([line(head, Span(f"{detail}  ({elapsed})", "dim"))])


def _kind(doing: str) -> str:
    """``weights`` of ``weights 3/48``."""
    return doing.rstrip("0123456789/ ")
