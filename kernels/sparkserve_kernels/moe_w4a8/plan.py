"""Row counts a launch is planned for, and how many tiles of routes it can have.

Pure arithmetic, the same on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Requests in a decode batch that have a capacity of their own."""
ROWS_PER_REQUEST = (5, 6)
"""Draft and verify."""
LADDER = (128, 256, 512, 1024, 2048, 4096)
"""Prefill."""
CAPACITIES: tuple[int, ...] = tuple(
    sorted({rows * batch for rows in ROWS_PER_REQUEST for batch in BATCHES} | set(LADDER))
)
MAX_ROWS = CAPACITIES[-1]
"""More rows are done in chunks of this size."""

PAIR_ROUTES = 576
"""Up to so many routes the planner compares every pair; the verify batch of 96 rows has them."""
PAIR_BLOCK = 64
"""Routes a program of the pairwise planner places."""


MAX_SLOTS = 32
"""Experts of a token: the scratch of a split first product is sized for no more."""


@dataclass(frozen=True)
class Geometry:
    """What does not change from call to call."""

    experts: int
    slots: int
    """Experts a token is routed to."""
    hidden: int
    inter: int
    """Columns of this rank's slice of every expert."""


def capacity_for(rows: int) -> int:
    """The smallest capacity that holds so many rows; the largest for more (they are chunked)."""
    return next((size for size in CAPACITIES if size >= rows), MAX_ROWS)


def chunks(rows: int) -> tuple[tuple[int, int], ...]:
    """Begin and end of each launch's rows."""
    return tuple((at, min(at + MAX_ROWS, rows)) for at in range(0, rows, MAX_ROWS))


def pairwise(routes: int) -> bool:
    """Whether the planner compares all pairs of routes, in place of one program per expert."""
    return routes <= PAIR_ROUTES


def tile_slots(routes: int, experts: int, tile: int) -> int:
    """Places in the tile table; those that no tile needs hold zero routes.

    Pairwise, a tile's place is the position of its first route or, up to ``PAIR_BLOCK`` routes,
    the number of tiles before it. Else it is that position divided by the tile's size, plus the
    expert's id: increasing and without collision, so that no expert needs to know how many tiles
    the others have.
    """
    return routes if pairwise(routes) else routes // tile + experts
