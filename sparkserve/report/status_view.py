"""A run as it stands: header, one row per rank, what to do next."""

from __future__ import annotations

from sparkserve.model.node_state import RankStatus, RunStatus
from sparkserve.report.console import Answer
from sparkserve.report.finding_view import finding_block
from sparkserve.report.table import Column, table
from sparkserve.report.text import (
    Line,
    Span,
    Style,
    cut_line,
    line,
    one_line,
    without_stamp,
    wrapped,
)
from sparkserve.units import format_bytes, format_duration

_WIDE = 110
"""From here on the last log line stands beside its rank, below that under the table."""
_STYLES: dict[str, Style] = {
    "serving": "good", "running": "good", "launching": "name", "starting": "name",
    "failed": "bad", "refused": "bad", "unreachable": "bad", "unhealthy": "bad",
}  # fmt: skip
_MAY_RUN = ("starting", "running", "stopping", "unreachable")
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
    lines += [line(), *wrapped(finding_block(status.findings), width)] if status.findings else []
    lines += [line(), *_next_steps(status)]
    return Answer(lines, {"status": status.model_dump(mode="json")}, (status.outcome,))


def rank_table(status: RunStatus, *, width: int | None) -> list[Line]:
    """One row per rank; then, never cut, why a rank is not well.

    The last log lines stand beside the ranks, on a narrow screen below the table.
    """
    rows = [_cells(rank) for rank in status.ranks]
    said = [Span(without_stamp(one_line(rank.last_line)), "dim") for rank in status.ranks]
    if width is None or width >= _WIDE:
        beside = [[*row, text] for row, text in zip(rows, said, strict=True)]
        lines = table([*_COLUMNS, _LAST_LINE], beside, width=width)
    else:
        lines = table(_COLUMNS, rows, width=width)
        told = [(rank, text) for rank, text in zip(status.ranks, said, strict=True) if text.text]
        lines += [line()] if told else []
        lines += [cut_line([Span(f"{rank.rank:>4}  "), text], width) for rank, text in told]
    reasons = _reasons(status)
    return [*lines, *([line()] if reasons else []), *reasons]


def _reasons(status: RunStatus) -> list[Line]:
    """Why ranks are not well; what one rank brought upon the others is said once."""
    by_rank = {rank.rank: rank for rank in status.ranks}
    lines = []
    for number in dict.fromkeys(rank.origin_rank for rank in status.ranks):
        origin = None if number is None else by_rank.get(number)
        if origin is not None:
            lines.append(_origin(origin, status.ranks))
    alone = [rank for rank in status.ranks if rank.reason and rank.origin_rank not in by_rank]
    return [*lines, *map(_reason, alone)]


def _origin(origin: RankStatus, ranks: tuple[RankStatus, ...]) -> Line:
    told = [rank.reason for rank in (origin, *ranks) if rank.origin_rank == origin.rank]
    reason = one_line(next((text for text in told if text), origin.state))
    reason = reason.removeprefix(f"rank {origin.rank}: ").removeprefix(f"{origin.node}: ")
    # A stop reaches some rank first, which is not to be blamed for it.
    if origin.state == "stopped":
        return line(f"ended: {reason}")
    who = f"rank {origin.rank} ({origin.node})"
    return line("ended because of ", Span(who, "bad"), f": {reason}")


def _reason(rank: RankStatus) -> Line:
    style: Style = "" if rank.state == "stopped" else _STYLES.get(rank.state, "")
    text = one_line(rank.reason).removeprefix(f"{rank.node}: ")
    return line(f"rank {rank.rank} on {rank.node} ", Span(rank.state, style), f": {text}")


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
        steps = [f"sparkserve logs{_blamed(status)} --run {status.run_id}"]
        left = any(rank.state in _MAY_RUN for rank in status.ranks)
        steps.append(f"sparkserve stop {status.run_id}" if left else "sparkserve launch")
    else:
        steps = ["sparkserve launch"]
    heads = ["next: ", *["      "] * (len(steps) - 1)]
    return [line(Span(head, "dim"), step) for head, step in zip(heads, steps, strict=True)]


def _blamed(status: RunStatus) -> str:
    """The node whose log tells the most, where one rank ended the run."""
    origins = {rank.origin_rank for rank in status.ranks} - {None}
    nodes = [f" {rank.node}" for rank in status.ranks if rank.rank in origins]
    return nodes[0] if len(nodes) == 1 else ""


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
