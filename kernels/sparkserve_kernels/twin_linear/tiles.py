"""Launch shapes by family, bucket of rows and shape of the weight: fixed, so all ranks agree.

K is split by the bucket of rows where a weight has few tiles (wo_a). The draft's head is never
split, and every one of its tiles adds in the same order: its bits do not depend on how many rows
there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sparkserve_kernels.target import Family

Kind = Literal["wide", "grouped"]
"""``wide``: one bf16 product per step. ``grouped``: weights as fp16, groups as the batch axis."""

ROW_BUCKETS = (8, 16, 32, 64, 128, 192)
"""Upper ends; rows beyond the last take its tile."""
UNSPLIT_COLUMNS = 8192
"""A weight of so many columns has tiles enough: the draft's head, whatever a rank holds of it."""
SPLITS: dict[Family, dict[int, int]] = {
    "spark": {8: 4, 16: 4, 32: 4, 64: 2},
    "hopper": {8: 8, 16: 8, 32: 4, 64: 2},
}
"""Programs that share a tile, by bucket: partial sums grow with the rows, what they save does not.
Not by how many columns a rank holds, so that ranks of any number run the same forms."""


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
    _, columns, k = shape
    bucket = next((end for end in ROW_BUCKETS if rows <= end), ROW_BUCKETS[-1])
    if family == "hopper":
        tile = _hopper(bucket, columns)
    elif bucket <= 16:
        tile = Tile("wide", 16, 32, 256, warps=4, stages=3)
    elif bucket <= 64:
        tile = Tile("wide", bucket, 64, 128, warps=4, stages=3)
    else:
        tile = Tile("wide", 128, 64, 64, warps=8, stages=3)
    split = 1 if columns >= UNSPLIT_COLUMNS else SPLITS[family].get(bucket, 1)
    while split > 1 and k < 4 * split * tile.depth:
        split //= 2
    return replace(tile, split=split)


def in_words(tile: Tile, k: int) -> bool:
    """Whether a step's exponents in a row are whole 32-bit words."""
    return tile.depth % 128 == 0 and k % tile.depth == 0


def _hopper(bucket: int, columns: int) -> Tile:
    """Measured on an H200 (docs/measurements/kernels-h200.md); more than 16 rows a tile spill.

    Every group of 32 columns has sums of its own, so a tile of many rows holds too many of them.
    """
    if bucket == 8 and columns < UNSPLIT_COLUMNS:
        return Tile("grouped", 8, 32, 128, warps=2, stages=4)
    return Tile("grouped", min(bucket, 16), 64, 128, warps=4, stages=4)
