"""A run as it stands: header, one row per rank, what to do next."""

from __future__ import annotations

from sparkserve.model.node_state import RankStatus, RunStatus
from sparkserve.report.console import Answer
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, cut_line, line, one_line, without_stamp
from sparkserve.units import format_bytes, format_duration

_WIDE = 110
"""From here on the last log line stands beside its rank, below that under the table."""
_STYLES: dict[str, Style] = {
    "serving": "good", "running": "good", "launching": "name", "starting": "name",
    "failed": "bad", "refused": "bad", "unreachable": "bad", "unhealthy": "bad",
}  # fmt: skip
_UP = ("serving", "launching", "unhealthy")
_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("STATE"),
    Column("UP", right=True),
    Column("MEMORY", right=True),
    Column("FREE", right=True),
    Column("ENGRAM ROWS", right=True),
)
_LAST_LINE = Column("LAST LINE", elastic=True)


def status_answer(status: RunStatus, *, width: int | None) -> Answer:
    """A run's state in all forms; quiet mode gets the outcome alone."""
    lines = [*_header(status), line(), *rank_table(status, width=width)]
    lines += [line(), *_next_steps(status)]
    return Answer(lines, {"status": status.model_dump(mode="json")}, (status.outcome,))


def rank_table(status: RunStatus, *, width: int | None) -> list[Line]:
    """One row per rank; what each said last beside it, or below the table on a narrow screen."""
    rows = [_cells(rank) for rank in status.ranks]
    if width is None or width >= _WIDE:
        said = [[*row, _said(rank)] for row, rank in zip(rows, status.ranks, strict=True)]
        return table([*_COLUMNS, _LAST_LINE], said, width=width)
    lines = table(_COLUMNS, rows, width=width)
    told = [(rank, _said(rank)) for rank in status.ranks]
    below = [cut_line([Span(f"{rank.rank:>4}  "), text], width) for rank, text in told if text.text]
    return [*lines, *([line(), *below] if below else [])]


def _header(status: RunStatus) -> list[Line]:
    up = status.outcome in _UP
    health = ", /health does not answer" if up and status.healthy is False else ""
    speed = status.decode_tokens_per_s if up else None
    pairs: list[tuple[str, Span]] = [
        ("run", Span(status.run_id, "bold")),
        ("profile", Span(status.profile)),
        ("outcome", Span(f"{status.outcome}{health}", _STYLES.get(status.outcome, ""))),
        ("endpoint", Span((status.endpoint_url or "") if up else "")),
        ("ready in", Span(format_duration(status.ready_s) if status.ready_s is not None else "")),
        ("speed", Span(f"{speed:.1f} tok/s" if speed else "")),
    ]
    return [line(Span(f"{label:<9} ", "dim"), text) for label, text in pairs if text.text]


def _next_steps(status: RunStatus) -> list[Line]:
    if status.outcome == "serving":
        steps = ["sparkserve chat 'Hello'", f"sparkserve stop {status.run_id}"]
    elif status.outcome in ("launching", "unhealthy"):
        steps = ["sparkserve logs --follow", f"sparkserve stop {status.run_id}"]
    elif status.outcome in ("failed", "unreachable"):
        steps = [f"sparkserve logs --run {status.run_id}", f"sparkserve stop {status.run_id}"]
    else:
        steps = ["sparkserve launch"]
    return [line(Span("next: ", "dim"), " · ".join(steps))]


def _cells(rank: RankStatus) -> list[Span]:
    counters = rank.progress
    rows = counters.engram_rows if counters else None
    return [
        Span(str(rank.rank)),
        Span(rank.node, "name"),
        Span(rank.state, _STYLES.get(rank.state, "")),
        Span("" if rank.uptime_s is None else format_duration(rank.uptime_s)),
        Span(format_bytes(counters.rss_bytes) if counters else ""),
        Span(format_bytes(counters.memory_available_bytes) if counters else ""),
        Span("" if rows is None else f"{rows:,}"),
    ]


def _said(rank: RankStatus) -> Span:
    """Why a rank is not well, else its last log line."""
    if rank.reason:
        return Span(one_line(rank.reason), "dim" if rank.state == "stopped" else "warn")
    return Span(without_stamp(one_line(rank.last_line)), "dim")
