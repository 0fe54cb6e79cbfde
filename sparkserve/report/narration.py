"""Which events of a launch leave a line that stays, and how that line reads."""

from __future__ import annotations

from datetime import datetime

from sparkserve.model.event import Event
from sparkserve.model.finding import Finding
from sparkserve.report.finding_view import finding_lines, matters
from sparkserve.report.launch_state import LaunchState, Phase
from sparkserve.report.text import Line, Span, Style, line, one_line
from sparkserve.units import format_duration

INDENT = 6
_PAD = " " * INDENT
_END_STYLES: dict[str, Style] = {"done": "good", "failed": "bad", "interrupted": "warn"}


def phase_head(phase: Phase, state: LaunchState) -> list[Span]:
    """``[3/7] start workers ...``."""
    of = f"/{state.total_phases}" if state.total_phases else ""
    number = f"[{phase.number}{of}] " if phase.number else "[-] "
    return [Span(number, "dim"), Span(f"{phase.title} ...")]


def phase_tail(phase: Phase, now: datetime) -> Line:
    """`` done (0.4 s)``."""
    end = phase.end or "done"
    took = format_duration(phase.elapsed_s(now))
    return line(" ", Span(end, _END_STYLES[end]), Span(f" ({took})", "dim"))


def lasting_lines(event: Event, *, verbosity: int) -> list[Line]:
    """Lines that an event leaves, apart from those of phases; none for most events.

    verbosity: 0 = warnings, notices, ranks that failed by themselves; 1 = every step, finding
        and ended rank too;
        2 = the engines' log lines too.
    """
    if event.kind == "notice":
        return [line(_PAD, one_line(event.message))]
    if event.kind == "finding":
        finding = Finding.model_validate(event.data)
        # What ends the launch is told in full by its error.
        wanted = matters(finding) and not finding.blocks
        return finding_lines(finding, indent=INDENT) if verbosity or wanted else []
    if event.kind == "step" and event.data.get("state") != "begun":
        return _step(event, verbosity)
    if event.kind == "state":
        return _state(event, verbosity)
    if event.kind == "log" and verbosity > 1:
        return [line(_PAD, Span(f"{event.node} | ", "name"), one_line(event.message))]
    return []


def _step(event: Event, verbosity: int) -> list[Line]:
    failed = event.data.get("state") == "failed"
    # A wait fails for what a rank did, not for what its own node did.
    if not verbosity and (not failed or event.data.get("effect") == "reads"):
        return []
    told = line(_PAD, f"{event.node}: {event.message}")
    if "state" not in event.data:
        return [told]
    return [line(*told, ": ", Span("failed", "bad") if failed else Span("done", "good"))]


def _state(event: Event, verbosity: int) -> list[Line]:
    """A rank that ended, or what a stop found on a node."""
    if not verbosity and _follows(event):
        return []
    who = f"rank {event.rank} {event.node}: "
    if "state" not in event.data:
        return [line(_PAD, who, one_line(event.message))]
    state = str(event.data["state"])
    if state not in ("stopped", "failed", "refused"):
        return []
    reason = one_line(str(event.data.get("reason", "")))
    style: Style = "bad" if state in ("failed", "refused") else ""
    return [line(_PAD, who, Span(state, style), f": {reason}" if reason else "")]


def _follows(event: Event) -> bool:
    """Whether it is only what had to come: a clean stop, or a rank that another one ended."""
    if "state" not in event.data:
        return bool(event.data.get("clean"))
    if event.data["state"] == "stopped":
        return True
    return event.data.get("origin_rank") not in (None, event.rank)
