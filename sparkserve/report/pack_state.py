"""What the events of packing or checking add up to, rank by rank; and how a rank is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sparkserve.model.event import Event
from sparkserve.report.console import Console
from sparkserve.report.launch_live import LiveLaunch
from sparkserve.report.launch_plain import PlainLaunch
from sparkserve.report.launch_state import LaunchState, Phase, Rank
from sparkserve.report.launch_view import JsonEvents, Watching
from sparkserve.report.narration import INDENT
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, cut_line, line
from sparkserve.units import format_bytes, format_duration

_PLAIN_EVERY_S = 5.0
_LEAST_SHARE = 0.01
"""Before this much is done a rate says more of the beginning than of the rest."""
_BAR_CELLS = 8
_WIDE_BAR_CELLS = 40
_WIDE = 120
_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("DOING"),
    Column(""),
    Column("DONE", right=True),
    Column("OF", right=True),
    Column("RATE", right=True),
    Column("LEFT", right=True),
)
_STYLES: dict[str, Style] = {"done": "good", "failed": "bad", "interrupted": "warn"}


@dataclass
class Work:
    """One rank's job as far as its events tell."""

    rank: int
    node: str
    state: str = "waiting"
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0

    @property
    def doing(self) -> str:
        """State, or while it runs the phase."""
        return self.phase if self.state == "running" and self.phase else self.state

    @property
    def share(self) -> float:
        """How much of the phase is done, 0 to 1."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 0.0

    @property
    def has_rate(self) -> bool:
        """Whether the rate means something."""
        return self.state == "running" and self.bytes_per_s > 0 and self.share >= _LEAST_SHARE

    @property
    def left_s(self) -> float | None:
        """Seconds until the phase is done at this rate; None where nobody can say."""
        left_bytes = self.total_bytes - self.done_bytes
        if not self.has_rate or left_bytes <= 0:
            return None
        return left_bytes / self.bytes_per_s


@dataclass
class PackState(LaunchState):
    """The whole command; ``take`` is called for every event in turn."""

    work: dict[int, Work] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Add one event."""
        super().take(event)
        if event.rank is None or event.node is None:
            return
        work = self.work.setdefault(event.rank, Work(event.rank, event.node))
        if event.kind == "state":
            work.state = str(event.data.get("state", work.state))
        elif event.kind == "progress":
            _count(work, event.message, event.data)

    def leave(self, kind: type[BaseException] | None, now: datetime) -> Phase | None:
        """End the phase under way; with a rank that failed it has failed."""
        failed = any(work.state == "failed" for work in self.work.values())
        return self.finish(now, "failed") if kind is None and failed else super().leave(kind, now)


def _count(work: Work, phase: str, data: dict[str, Any]) -> None:
    work.phase = phase
    work.done_bytes = int(data.get("done_bytes", 0))
    work.total_bytes = int(data.get("total_bytes", 0))
    work.bytes_per_s = float(data.get("bytes_per_s", 0.0))


def work_lines(state: LaunchState, now: datetime, *, width: int, height: int) -> list[Line]:
    """A bar per rank, within a screen; the bars tell their own time, not ``now``."""
    works = [work for _, work in sorted(state.work.items())] if isinstance(state, PackState) else []
    if not works:
        return []
    cells = _WIDE_BAR_CELLS if width >= _WIDE else _BAR_CELLS
    rows = [_row(work, cells) for work in works]
    return [cut_line(one, width) for one in table(_COLUMNS, rows, width=width)[: max(height, 1)]]


def _row(work: Work, bar_cells: int) -> list[Span]:
    counted = work.total_bytes > 0
    return [
        Span(str(work.rank)),
        Span(work.node, "name"),
        Span(work.doing, _STYLES.get(work.doing, "")),
        Span(bar(work.share, bar_cells) if counted else ""),
        Span(format_bytes(work.done_bytes) if counted else ""),
        Span(format_bytes(work.total_bytes) if counted else ""),
        Span(_rate(work)),
        Span("" if work.left_s is None else format_duration(work.left_s)),
    ]


def bar(share: float, cells: int) -> str:
    """``████░░░░``: full cells are done."""
    full = int(share * cells)
    return "█" * full + "░" * (cells - full)


def _rate(work: Work) -> str:
    return f"{format_bytes(work.bytes_per_s)}/s" if work.has_rate else ""


class PlainPack(PlainLaunch):
    """A line per rank every few seconds, and whenever a rank's phase changes."""

    def __init__(self, console: Console) -> None:
        self._pack = PackState()
        super().__init__(console, self._pack)
        self._last: dict[int, tuple[str, datetime]] = {}

    def tell_rank(self, rank: Rank, at: datetime) -> None:
        """Tell where a rank stands, if it is time to."""
        work = self._pack.work[rank.rank]
        phase, since = self._last.get(work.rank, ("", at))
        if phase == work.phase and (at - since).total_seconds() < _PLAIN_EVERY_S:
            return
        self._last[work.rank] = (work.phase, at)
        self.lines([_told(work)])


def _told(work: Work) -> Line:
    """``rank 0 spark1: pack 12.3 GiB of 47.2 GiB (26 %), 812.0 MiB/s, 44 s left``."""
    counted = f"{format_bytes(work.done_bytes)} of {format_bytes(work.total_bytes)}"
    parts = [f"{work.phase} {counted} ({work.share:.0%})".replace("%", " %")]
    parts += [text for text in (_rate(work),) if text]
    parts += [] if work.left_s is None else [f"{format_duration(work.left_s)} left"]
    return line(" " * INDENT, f"rank {work.rank} {work.node}: {', '.join(parts)}")


def observer_for(console: Console) -> Watching:
    """The view of a running pack or check: bars, plain lines, or NDJSON."""
    if console.mode == "json":
        return JsonEvents(console)
    if console.is_live:
        return LiveLaunch(console, PackState(), work_lines)
    return PlainPack(console)
