"""Tables fit their screen, lose nothing in a pipe and leave no trailing blanks."""

from __future__ import annotations

import pytest

from sparkserve.report.table import Column, table
from sparkserve.report.text import Span, cells

COLUMNS = (Column("RANK", right=True), Column("NODE"), Column("NOTE"), Column("SAID", elastic=True))
ROWS = [
    ["0", Span("spark1", "name"), "", "a short word"],
    ["11", "日本", "", "a long sentence that says more than fits on a narrow screen"],
]


def plain(width: int | None) -> list[str]:
    return [row.plain for row in table(COLUMNS, ROWS, width=width)]


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    assert plain(None) == [
        "RANK  NODE    SAID",
        "   0  spark1  a short word",
        "  11  日本    a long sentence that says more than fits on a narrow screen",
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_elastic_column_gives_way(width: int) -> None:
    rows = plain(width)
    assert all(cells(row) <= width for row in rows)
    assert rows[1].endswith("a short word")


def test_elastic_column_keeps_a_readable_rest() -> None:
    assert plain(5)[2] == "  11  日本    a long sent…"


def test_no_rows_leave_no_table_but_an_empty_line() -> None:
    assert [row.plain for row in table(COLUMNS, [], width=80)] == [""]


def test_no_line_ends_in_blanks() -> None:
    rows = table((Column("A"), Column("B")), [["x", ""], ["y", "z"]], width=None)
    assert [row.plain for row in rows] == ["A  B", "x", "y  z"]
