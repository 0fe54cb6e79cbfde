"""Launch shapes by mode and rows; every rank with the same rows takes the same one.

No tile changes the order of the additions, so none changes a bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkserve_kernels.target import Family

Mode = Literal["splitk", "walk"]

WALK_ROWS = 512
"""From here on the walk is the default; fewer rows leave it too few programs."""


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


TILES: dict[Family, dict[Mode, tuple[tuple[int | None, Tile], ...]]] = {
    "spark": {
        "splitk": (
            (16, Tile(rows=16, warps=4, stages=4)),
            (None, Tile(rows=64, warps=8, stages=4)),
        ),
        "walk": (
            (2048, Tile(rows=32, warps=4, stages=5, groups=2)),
            (None, Tile(rows=64, warps=8, stages=4, groups=2)),
        ),
    },
    "hopper": {
        "splitk": (
            (64, Tile(rows=64, warps=4, stages=4)),
            (None, Tile(rows=128, warps=4, stages=4)),
        ),
        "walk": (
            (2048, Tile(rows=64, warps=4, stages=4)),
            (None, Tile(rows=128, warps=4, stages=4)),
        ),
    },
}
"""Per family and mode: tiles up to a number of rows, None for any number. No Spark was measured:
its tiles follow from 48 processors and 99 KiB of shared memory."""

FINISH: dict[Mode, FinishTile] = {
    "splitk": FinishTile(rows=4, warps=4),
    "walk": FinishTile(rows=4, warps=4),
}


def mode_for(rows: int) -> Mode:
    """The default mode for a number of rows."""
    return "walk" if rows >= WALK_ROWS else "splitk"


def tile_for(family: Family, mode: Mode, rows: int) -> Tile:
    """The tile for a number of rows."""
    return next(tile for limit, tile in TILES[family][mode] if limit is None or rows <= limit)
