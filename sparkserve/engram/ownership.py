"""Which rows of an Engram table a tensor-parallel rank owns (contiguous layouts)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Layout = Literal["columns", "equal", "strided"]


class RowRange(NamedTuple):
    """Rows ``start <= row < end`` of one table."""

    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows the range holds."""
        return self.end - self.start


def equal_range(total_rows: int, rank: int, tp: int) -> RowRange:
    """Rank's share when rows are split evenly, without regard to hash columns."""
    return RowRange(total_rows * rank // tp, total_rows * (rank + 1) // tp)


def columns_range(bounds: Sequence[int], rank: int, tp: int) -> RowRange:
    """Rank's share on hash-column boundaries; the equal split where columns do not divide.

    bounds: prefix sums of the column sizes, [columns + 1]; column c owns rows
        ``bounds[c] <= row < bounds[c + 1]`` and ``bounds[-1]`` is the table's row count.
    """
    columns = len(bounds) - 1
    if columns % tp:
        return equal_range(bounds[-1], rank, tp)
    share = columns // tp
    return RowRange(bounds[rank * share], bounds[(rank + 1) * share])
