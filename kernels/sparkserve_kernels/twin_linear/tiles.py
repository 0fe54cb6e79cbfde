"""Launch shapes by family, bucket of rows and shape of the weight: fixed, so all ranks agree.

How K is split depends on the rows only where a weight has so few tiles that splitting pays
(wo_a); the draft's head is never split, and every one of its tiles adds in the same order, so its
bits do not depend on how many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkserve_kernels.target import Family

Kind = Literal["wide", "grouped"]
"""``wide``: one bf16 product per step. ``grouped``: weights as fp16, groups as the batch axis."""

ROW_BUCKETS = (8, 16, 32, 64, 128, 192)
"""Upper ends; rows beyond the last take its tile."""
PROGRAMS: dict[Family, int] = {"spark": 96, "hopper": 264}
"""Programs that a launch wants at least: two per multiprocessor."""


@dataclass(frozen=True)
class Tile:
    """One launch shape."""

    kind: Kind
    rows: int
    columns: int
    depth: int
    """Elements of K that a step takes."""
    warps: int
    stages: int
    split: int = 1
    """Programs that share a tile of the result."""


def tile_for(family: Family, rows: int, shape: tuple[int, int, int]) -> Tile:
    """The launch shape for a weight of (groups, N, K) at so many rows."""
    groups, columns, k = shape
    bucket = next((end for end in ROW_BUCKETS if rows <= end), ROW_BUCKETS[-1])
    if family == "hopper":
        tile = _hopper(bucket, groups * columns)
    elif bucket <= 16:
        tile = Tile("wide", 16, 32, 256, warps=4, stages=3)
    elif bucket <= 64:
        tile = Tile("wide", bucket, 64, 128, warps=4, stages=3)
    else:
        tile = Tile("wide", 128, 64, 64, warps=8, stages=3)
    tiles = groups * -(-columns // tile.columns)
    split = 1
    while (
        split < _most_splits(bucket)
        and tiles * split < PROGRAMS[family]
        and k >= 4 * split * tile.depth
    ):
        split *= 2
    return Tile(tile.kind, tile.rows, tile.columns, tile.depth, tile.warps, tile.stages, split)


def in_words(tile: Tile, k: int) -> bool:
    """Whether a step's exponents in a row are whole 32-bit words."""
    return tile.depth % 128 == 0 and k % tile.depth == 0


def _hopper(bucket: int, lines: int) -> Tile:
    """Measured on an H200 (docs/measurements/kernels-h200.md); more than 16 rows a tile spill.

    Every group of 32 columns has sums of its own, so a tile of many rows holds too many of them.
    """
    if bucket == 8 and lines < 8192:
        return Tile("grouped", 8, 32, 128, warps=2, stages=4)
    return Tile("grouped", min(bucket, 16), 64, 128, warps=4, stages=4)


def _most_splits(bucket: int) -> int:
    """Partial sums grow with the rows; the bytes they save do not."""
    return {8: 8, 16: 8, 32: 4, 64: 2}.get(bucket, 1)
