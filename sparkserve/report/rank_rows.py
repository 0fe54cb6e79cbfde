"""Rows of the live launch table: one per rank, its last log line beside or below it."""

from __future__ import annotations

from datetime import datetime

from sparkserve.report.launch_state import LaunchState, Rank
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, cut_line, line, without_stamp
from sparkserve.units import format_bytes, format_duration

WIDE = 120
"""From here on the last log line stands beside its rank."""
_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("STATE"),
    Column("READ", right=True),
    Column("MEMORY FREE", right=True),
    Column("ROWS", right=True),
    Column("TIME", right=True),
)
_LAST_LINE = Column("LAST LINE", elastic=True)
_STATE_STYLES: dict[str, Style] = {
    "failed": "bad", "refused": "bad", "waiting": "dim", "serving": "good",
}  # fmt: skip


def rank_lines(state: LaunchState, now: datetime, *, width: int, height: int) -> list[Line]:
    """The table of all ranks within a screen.

    height: lines there are; where they do not suffice the last log lines are left out.
    """
    ranks = [rank for _, rank in sorted(state.ranks.items())]
    if not ranks:
        return []
    if width >= WIDE:
        rows = [[*_cells(rank, now), Span(_said(rank), "dim")] for rank in ranks]
        return table([*_COLUMNS, _LAST_LINE], rows, width=width)
    lines = table(_COLUMNS, [_cells(rank, now) for rank in ranks], width=width)
    if 2 * len(ranks) + 1 > height:
        return [cut_line(one, width) for one in lines]
    told = [lines[0]]
    for rank, row in zip(ranks, lines[1:], strict=True):
        told.append(row)
        if _said(rank):
            told.append(line("      ", Span(_said(rank), "dim")))
    return [cut_line(one, width) for one in told]


def _said(rank: Rank) -> str:
    return rank.reason if rank.ended and rank.reason else without_stamp(rank.last_line)


def _cells(rank: Rank, now: datetime) -> list[Span]:
    return [
        Span(str(rank.rank)),
        Span(rank.node, "name"),
        Span(rank.doing, _STATE_STYLES.get(rank.doing, "")),
        Span(_size(rank.read_bytes)),
        Span(_size(rank.memory_available_bytes)),
        Span("" if rank.engram_rows is None else f"{rank.engram_rows:,}"),
        Span(format_duration((now - rank.begun_at).total_seconds())),
    ]


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)
