"""A launch on a terminal: finished phases scroll up, the ranks move in place below them."""

from __future__ import annotations

import contextlib
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from sparkserve.model.event import Event
from sparkserve.report.console import Console
from sparkserve.report.finding_view import summary_line
from sparkserve.report.launch_state import LaunchState, Phase
from sparkserve.report.narration import INDENT, lasting_lines, phase_head, phase_tail
from sparkserve.report.rank_rows import rank_lines
from sparkserve.report.text import Line, Span, line, wrap
from sparkserve.units import format_duration

if TYPE_CHECKING:
    from rich.text import Text

_FRAMES_PER_S = 8
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_STYLES = {
    "bold": "bold", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red",
    "name": "cyan",
}  # fmt: skip


class Rows(Protocol):
    """Draws the ranks."""

    def __call__(self, state: LaunchState, now: datetime, *, width: int, height: int) -> list[Line]:
        """Lines of the ranks within a screen."""


class LiveLaunch:
    """An Observer that draws; enter it before the first event and leave it after the last.

    state: what the events add up to; None = that of a launch.
    rows: the lines below the phase, one or more per rank.
    """

    def __init__(
        self, console: Console, state: LaunchState | None = None, rows: Rows = rank_lines
    ) -> None:
        from rich.console import Console as Screen
        from rich.live import Live

        self._console = console
        self._lock = threading.RLock()
        self.state = state or LaunchState()
        self._rows = rows
        self._screen = Screen(
            file=console.error_stream,
            force_terminal=True,
            highlight=False,
            markup=False,
            emoji=False,
            no_color=not console.is_colored,
            width=console.settings.width,
        )
        self._live = Live(
            get_renderable=self._draw,
            console=self._screen,
            refresh_per_second=_FRAMES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveLaunch:
        self._live.start()
        self._console.progress_was_drawn()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            lines = self._ended(self.state.leave(kind, _now()))
        self._print(lines)
        # A terminal that was closed must not keep a launch from cleaning up.
        with contextlib.suppress(OSError):
            self._live.stop()

    def event(self, event: Event) -> None:
        """Take one event."""
        # The screen's own lock is taken while it draws, so nothing is printed under ours.
        with self._lock:
            before = self.state.phase
            self.state.take(event)
            if event.kind == "phase":
                lines = self._ended(before)
            else:
                lines = lasting_lines(event, verbosity=self._console.settings.verbosity)
        self._print(lines)

    def _ended(self, phase: Phase | None) -> list[Line]:
        if phase is None or phase.ended_at is None:
            return []
        lines = [line(*phase_head(phase, self.state), *phase_tail(phase, phase.ended_at))]
        if phase.title == "facts" and self.state.findings:
            lines.append(summary_line(self.state.findings, indent=INDENT))
        return lines

    def _print(self, lines: list[Line]) -> None:
        if lines:
            lines = [part for one in lines for part in wrap(one, self._screen.size.width)]
            with contextlib.suppress(OSError):
                # Otherwise the frame drawn last, of a phase that is over, would be drawn again.
                self._live.refresh()
                self._screen.print(self._text(lines), soft_wrap=True)

    def _draw(self) -> Text:
        now = _now()
        size = self._screen.size
        with self._lock:
            phase = self.state.phase
            if phase is None:
                return self._text([])
            frame = _SPINNER[int(now.timestamp() * _FRAMES_PER_S) % len(_SPINNER)]
            took = format_duration(phase.elapsed_s(now))
            head = line(*phase_head(phase, self.state), Span(f" {frame} {took}", "dim"))
            rows = self._rows(self.state, now, width=size.width, height=size.height - 2)
        return self._text([head, *rows])

    def _text(self, lines: list[Line]) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for number, one in enumerate(lines):
            text.append("\n" if number else "")
            for span in one:
                style = _STYLES.get(span.style, "") if self._console.is_colored else ""
                text.append(span.text, style=style)
        return text


def _now() -> datetime:
    return datetime.now(UTC)
