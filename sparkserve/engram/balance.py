"""How evenly the reading of rows is spread over the ranks.

Ranks wait for each other after every lookup, so the one with most reads sets the pace. Equal
numbers of ids do not make equal numbers of reads: short n-grams repeat, long ones hardly do, and a
row that is asked for twice is read once. A layout that gives one rank the columns of the longest
n-grams therefore gives it most of the reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.ownership import Layout, owned_ranges

WARN_RATIO = 2.0
"""Above this, the ranks with few reads mostly wait for the one with many."""

Reuse = Literal["chunk", "cache"]
"""Where a repeated row is found again: within its chunk only, or in all that was ever read."""

TEXT_READS: dict[Reuse, dict[int, float]] = {
    "chunk": {2: 0.567, 3: 0.785, 4: 0.872},
    "cache": {2: 0.266, 3: 0.522, 4: 0.662},
}
"""Rows read per token and column of prose, by n-gram order (docs/measurements)."""


def imbalance(rows: Sequence[float]) -> float:
    """Most reads of a rank over fewest; 1.0 = all alike, infinite where a rank reads nothing.

    rows: rows read by each rank in the same time. No ranks, and no reads at all, are alike.
    """
    if not rows or max(rows) == 0:
        return 1.0
    return max(rows) / min(rows) if min(rows) > 0 else math.inf


def predicted_rows(
    column_reads: Sequence[float], bounds: Sequence[int], layout: Layout, tp: int
) -> tuple[float, ...]:
    """Rows that each rank reads, given what is read of each hash column.

    column_reads: rows read per column, whatever the unit, [columns].
    bounds: column bounds of the table, [columns + 1].

    Notes: a hash spreads a column's reads evenly over its rows, so that a rank with a part of a
    column reads that part of them.
    """
    totals = []
    for rank in range(tp):
        reads = 0.0
        for start, end in owned_ranges(bounds, layout, rank, tp):
            for column, share in enumerate(column_reads):
                low, high = max(start, bounds[column]), min(end, bounds[column + 1])
                if low < high:
                    reads += share * (high - low) / (bounds[column + 1] - bounds[column])
        totals.append(reads)
    return tuple(totals)


def predicted_imbalance(config: EngramConfig, layout: Layout, tp: int, reuse: Reuse) -> float:
    """The worst ratio of a model's layers while prose is prefilled in chunks of 4,096 tokens.

    Notes: orders beyond four are taken to repeat like four-grams. A longer text or a warmer cache
    than the measured one makes the ratio larger.
    """
    reads = TEXT_READS[reuse]
    orders = (min(order, max(reads)) for order in range(2, config.max_ngram_size + 1))
    column_reads = [reads[order] for order in orders for _ in range(config.n_heads)]
    return max(
        imbalance(predicted_rows(column_reads, bounds, layout, tp)) for bounds in config.all_bounds
    )
