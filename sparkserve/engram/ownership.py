"""Which rows of an Engram table a tensor-parallel rank owns, in the three layouts.

``columns``
    whole hash columns, neighbours together: rank r owns columns ``n * r / tp`` up to
    ``n * (r + 1) / tp`` of n. Where n does not divide by tp, the same as ``equal``.
``equal``
    the table's rows cut into tp runs of equal length, without regard to hash columns.
``strided``
    whole hash columns, dealt out in turn: rank r owns the columns c with ``c mod tp = r``.

Every layout gives every row to exactly one rank. A file is only valid with the layout it was
packed for, so packer, verifier, adapters and checks all ask ``owned_ranges``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkserve.errors import ConfigError
from sparkserve.model.layout import Layout

__all__ = [
    "Layout",
    "RowRange",
    "Segment",
    "columns_range",
    "equal_range",
    "owned_columns",
    "owned_ranges",
    "segments_of",
]


class RowRange(NamedTuple):
    """Rows ``start <= row < end`` of one table."""

    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows the range holds."""
        return self.end - self.start


class Segment(NamedTuple):
    """A run of owned row ids, and where its rows lie in the rank's file.

    Id ``first_id <= id < end_id`` is row ``first_row + (id - first_id)`` of the file.
    """

    first_id: int
    end_id: int
    first_row: int


def owned_ranges(bounds: Sequence[int], layout: Layout, rank: int, tp: int) -> tuple[RowRange, ...]:
    """Row ranges of the table that a rank owns, in the order in which its file holds them.

    bounds: prefix sums of the column sizes, [columns + 1]; column c owns rows
        ``bounds[c] <= row < bounds[c + 1]`` and ``bounds[-1]`` is the table's row count.
    rank: 0 <= rank < tp.

    Returns:
        Ascending ranges without overlap: one for ``columns`` and ``equal`` (empty where there
        are fewer rows than ranks), one per owned column for ``strided`` (none where there are
        fewer columns than ranks).

    Raises:
        ConfigError: there is no such rank.
    """
    _check_rank(rank, tp)
    columns = len(bounds) - 1
    if layout == "strided":
        return tuple(RowRange(bounds[c], bounds[c + 1]) for c in range(rank, columns, tp))
    if layout == "columns":
        return (columns_range(bounds, rank, tp),)
    return (equal_range(bounds[-1], rank, tp),)


def owned_columns(layout: Layout, rank: int, tp: int, columns: int) -> tuple[int, ...] | None:
    """Hash columns that a rank owns whole, ascending; None where rows cut through columns.

    With an answer, the ids that a rank must look up can be sliced out by column before they are
    copied anywhere: all of them are its own, and their number does not depend on the text.

    columns: hash columns per layer (24 in DeepSeek-V4.1-Flash).

    Raises:
        ConfigError: there is no such rank.
    """
    _check_rank(rank, tp)
    if layout == "strided":
        return tuple(range(rank, columns, tp))
    if tp == 1:
        return tuple(range(columns))
    if layout == "equal" or columns % tp:
        return None
    share = columns // tp
    return tuple(range(rank * share, (rank + 1) * share))


def segments_of(ranges: Iterable[RowRange]) -> tuple[Segment, ...]:
    """Where the rows of a rank's ranges lie in its file: back to back, in the given order.

    Empty ranges give no segment.
    """
    segments = []
    first_row = 0
    for start, end in ranges:
        if end > start:
            segments.append(Segment(start, end, first_row))
        first_row += end - start
    return tuple(segments)


def equal_range(total_rows: int, rank: int, tp: int) -> RowRange:
    """Rank's share when rows are split evenly, without regard to hash columns."""
    return RowRange(total_rows * rank // tp, total_rows * (rank + 1) // tp)


def columns_range(bounds: Sequence[int], rank: int, tp: int) -> RowRange:
    """Rank's share on hash-column boundaries; the equal split where columns do not divide.

    bounds: prefix sums of the column sizes, as in ``owned_ranges``.
    """
    columns = len(bounds) - 1
    if columns % tp:
        return equal_range(bounds[-1], rank, tp)
    share = columns // tp
    return RowRange(bounds[rank * share], bounds[(rank + 1) * share])


def _check_rank(rank: int, tp: int) -> None:
    if not 0 <= rank < tp:
        raise ConfigError(f"rank {rank} of {tp}, expected a rank from 0 to {tp - 1}")
