"""Tiles of the score kernels: a fixed table by GPU family and row count."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve_kernels.target import Family

HEADS = 32
DIM = 128
ROWS_PER_SPLIT = 1024
"""Rows that one program walks over at most: enough to pay for decoding its keys once."""
SCAN = 128
WIDEN_BLOCK = 64


@dataclass(frozen=True)
class ScoreTile:
    """One program's tile: keys against rows of 32 heads each."""

    keys: int
    rows: int
    warps: int
    stages: int
    wide: bool
    """Queries are decoded once by a kernel of their own: it pays where many key tiles read them."""

    @property
    def label(self) -> str:
        """Such as ``128 keys x 4 rows wide``."""
        return f"{self.keys} keys x {self.rows} rows{' wide' if self.wide else ''}"


FEW_ROWS = 64
TILES: dict[Family, tuple[tuple[int, ScoreTile], ...]] = {
    "spark": (
        (FEW_ROWS, ScoreTile(keys=128, rows=2, warps=4, stages=2, wide=True)),
        (1 << 31, ScoreTile(keys=256, rows=2, warps=8, stages=2, wide=True)),
    ),
    "hopper": (
        (FEW_ROWS, ScoreTile(keys=128, rows=2, warps=4, stages=2, wide=True)),
        (1 << 31, ScoreTile(keys=256, rows=4, warps=8, stages=4, wide=True)),
    ),
}
"""Tile by the largest row count it serves."""


@dataclass(frozen=True)
class CandidateTile:
    """One program's tile: keys of one row's blocks."""

    keys: int
    warps: int


CANDIDATE_TILES: dict[Family, CandidateTile] = {
    "spark": CandidateTile(keys=128, warps=4),
    "hopper": CandidateTile(keys=128, warps=4),
}


def tile_for(family: Family, rows: int) -> ScoreTile:
    """The tile for a row count; a row's bits do not depend on it (see kernel.py)."""
    return next(tile for most, tile in TILES[family] if rows <= most)
