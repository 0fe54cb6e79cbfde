"""Launch shapes by mode and rows; every rank with the same rows takes the same one.

No tile changes the order of the additions, so none changes a bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkserve_kernels.target import Family

Mode = Literal["splitk", "walk"]
Weight = Literal["fn", "parts"]
"""As it is, or cut beforehand."""

WALK_ROWS: dict[Family, int] = {"spark": 512, "hopper": 2048}
"""From here on the walk is the default; fewer rows leave it too few programs. The Spark's figure is
that of published measurements of a like kernel; an H200 took the same in both at 1,024 rows."""


@dataclass(frozen=True)
class Tile:
    """One launch shape of the multiplying kernel.

    On a Hopper rows are 64 or more in every tile: below that Triton takes another matrix
    instruction, whose sums nobody has proven equal.
    """

    rows: int
    warps: int
    stages: int
    groups: int = 1
    """Groups that a program of the walk takes, one after the other."""


@dataclass(frozen=True)
class FinishTile:
    """One launch shape of the kernel that adds the partial sums up."""

    rows: int
    warps: int


Table = tuple[tuple[int | None, Tile], ...]
"""Tiles up to a number of rows, None for any number."""

TILES: dict[Family, dict[tuple[Mode, Weight], Table]] = {
    "spark": {
        ("splitk", "fn"): (
            (16, Tile(rows=16, warps=4, stages=4)),
            (None, Tile(rows=64, warps=8, stages=4)),
        ),
        ("splitk", "parts"): (
            (16, Tile(rows=16, warps=4, stages=4)),
            (None, Tile(rows=64, warps=8, stages=4)),
        ),
        ("walk", "fn"): (
            (2048, Tile(rows=32, warps=4, stages=5, groups=2)),
            (None, Tile(rows=64, warps=8, stages=4, groups=2)),
        ),
        ("walk", "parts"): (
            (2048, Tile(rows=32, warps=4, stages=5, groups=2)),
            (None, Tile(rows=64, warps=8, stages=4, groups=2)),
        ),
    },
    "hopper": {
        ("splitk", "fn"): (
            (64, Tile(rows=64, warps=4, stages=4)),
            (None, Tile(rows=128, warps=4, stages=4)),
        ),
        ("splitk", "parts"): (
            (64, Tile(rows=64, warps=4, stages=4)),
            (None, Tile(rows=128, warps=4, stages=4)),
        ),
        ("walk", "fn"): (
            (2048, Tile(rows=64, warps=4, stages=4)),
            (None, Tile(rows=128, warps=4, stages=4)),
        ),
        ("walk", "parts"): (
            (2048, Tile(rows=64, warps=4, stages=4)),
            (None, Tile(rows=128, warps=8, stages=4)),
        ),
    },
}
"""Per family, mode and form of the weight. No Spark was measured: its tiles follow from 48
processors and 99 KiB of shared memory."""

FINISH_FEW_ROWS = 256
"""Up to here a program per row is soonest done; more rows ask for threads without idle lanes."""

FINISH: dict[Mode, tuple[FinishTile, FinishTile]] = {
    "splitk": (FinishTile(rows=1, warps=1), FinishTile(rows=8, warps=2)),
    "walk": (FinishTile(rows=1, warps=1), FinishTile(rows=4, warps=1)),
}
"""Few and many rows."""


def mode_for(family: Family, rows: int) -> Mode:
    """The default mode for a number of rows; it changes no bit."""
    return "walk" if rows >= WALK_ROWS[family] else "splitk"


def tile_for(family: Family, mode: Mode, weight: Weight, rows: int) -> Tile:
    """The tile of the multiplying kernel for a number of rows."""
    table = TILES[family][mode, weight]
    return next(tile for limit, tile in table if limit is None or rows <= limit)


def finish_for(mode: Mode, rows: int) -> FinishTile:
    """The tile of the adding kernel for a number of rows."""
    few, many = FINISH[mode]
    return few if rows <= FINISH_FEW_ROWS else many
