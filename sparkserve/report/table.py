"""Tables of plain columns: no frames, so that every line can be read, cut and searched alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkserve.report.text import Line, Part, Span, cells, cut

_GAP = "  "
_LEAST_ELASTIC = 12


class Column(NamedTuple):
    """One column."""

    title: str
    right: bool = False
    """Numbers stand at the right."""
    elastic: bool = False
    """Gives way where the table is wider than the screen; one column of a table at most."""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Part]],
    *,
    width: int | None,
    indent: int = 0,
) -> list[Line]:
    """Lay rows out under their titles; a column without any content is left out.

    width: columns of the screen; None = nothing is cut.
    """
    grid = [[cell if isinstance(cell, Span) else Span(cell) for cell in row] for row in rows]
    shown = [i for i in range(len(columns)) if any(row[i].text for row in grid)]
    widths = _widths([columns[i] for i in shown], [[row[i] for i in shown] for row in grid])
    if width is not None:
        _fit(widths, [columns[i] for i in shown], width - indent)
    head = [Span(columns[i].title, "bold") for i in shown]
    body = [[row[i] for i in shown] for row in grid]
    return [
        _lay(cells_of_row, [columns[i] for i in shown], widths, indent)
        for cells_of_row in [head, *body]
    ]


def _widths(columns: Sequence[Column], grid: Sequence[Sequence[Span]]) -> list[int]:
    return [
        max([cells(column.title), *(cells(row[i].text) for row in grid)])
        for i, column in enumerate(columns)
    ]


def _fit(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Narrow the elastic column so that the table fits, but never below a readable rest."""
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    for i, column in enumerate(columns):
        if column.elastic and over > 0:
            widths[i] = max(min(widths[i], _LEAST_ELASTIC), widths[i] - over)


def _lay(
    row: Sequence[Span], columns: Sequence[Column], widths: Sequence[int], indent: int
) -> Line:
    spans: list[Span] = [Span(" " * indent)] if indent else []
    for i, (cell, column, width) in enumerate(zip(row, columns, widths, strict=True)):
        text = cut(cell.text, width)
        padding = " " * (width - cells(text))
        last = i == len(row) - 1
        before, after = (padding, "") if column.right else ("", "" if last else padding)
        spans += [Span(_GAP if i else ""), Span(before), Span(text, cell.style), Span(after)]
    return Line(span for span in _trimmed(spans) if span.text)


def _trimmed(spans: list[Span]) -> list[Span]:
    """Spans without trailing blanks: an empty last cell leaves no invisible tail."""
    while spans and not spans[-1].text.strip():
        spans.pop()
    return spans
