"""Launch shapes by family, bucket of rows, columns and K: fixed, so that all ranks take the same.

A shape also fixes the order of the sums. It depends on K only through the next multiple of 128:
a layer padded to one (``pad_k``) gives the same bits as before. BK is a multiple of 128 for the
same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkserve_kernels.split_k import MAX_CELLS, MAX_TILES
from sparkserve_kernels.target import Family

Kind = Literal["scaled", "few", "many"]
"""Kernel: ``scaled`` on the Spark; ``few`` and ``many`` rows on a Hopper."""

PAD = 128


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
    fuse: bool = False
    """Whether every program quantises bf16 rows for itself; no bit depends on it."""


ROW_BUCKETS: dict[Family, tuple[int, ...]] = {"spark": (16, 64), "hopper": (8, 16, 32, 128)}
"""Upper ends; more rows than the last are prefill."""

PROGRAMS: dict[Family, int] = {"spark": 96, "hopper": 264}
"""Programs that a launch wants at least: two per multiprocessor."""


def bucket_of(family: Family, rows: int) -> int | None:
    """The upper end of the bucket that so many rows fall into; None for prefill."""
    return next((end for end in ROW_BUCKETS[family] if rows <= end), None)


def tile_for(family: Family, rows: int, columns: int, k: int) -> Tile:
    """The launch shape for a layer of K = k at so many rows."""
    bucket = bucket_of(family, rows)
    padded = -(-k // PAD) * PAD
    if family == "spark":
        return _spark(bucket, columns, padded)
    return _hopper(bucket, columns, padded)


def _spark(bucket: int | None, columns: int, k: int) -> Tile:
    if bucket is None:
        return Tile("scaled", rows=128, columns=128, depth=128, warps=8, stages=3)
    # With two warps a thread has four scale bytes of the weight: only then are they streamed too.
    warps = 2 if bucket == 16 else 4
    split = _split("spark", bucket, (bucket, 64), columns, k // 128)
    return Tile("scaled", bucket, columns=64, depth=128, warps=warps, stages=3, split=split)


HOPPER_DECODE: dict[tuple[int, int], Tile] = {
    (25600, 6144): Tile("few", 8, columns=16, depth=1024, warps=4, stages=3),
    (5120, 15360): Tile("few", 8, columns=32, depth=512, warps=4, stages=3, split=2),
    (1792, 5120): Tile("few", 8, columns=64, depth=128, warps=2, stages=4, split=8, fuse=True),
    (1152, 5120): Tile("few", 8, columns=32, depth=128, warps=2, stages=4, split=8, fuse=True),
    (5120, 640): Tile("few", 8, columns=16, depth=128, warps=1, stages=5),
}
"""Up to 8 rows, by N and K padded to 128, where another than the default was faster on an H200."""


def _hopper(bucket: int | None, columns: int, k: int) -> Tile:
    if bucket is None:
        return Tile("many", rows=128, columns=128, depth=128, warps=8, stages=3)
    if bucket == 8 and (columns, k) in HOPPER_DECODE:
        return HOPPER_DECODE[columns, k]
    if bucket <= 16:
        split = _split("hopper", bucket, (bucket, 16), columns, k // 256)
        return Tile("few", bucket, columns=16, depth=256, warps=2, stages=4, split=split)
    split = _split("hopper", bucket, (32, 32), columns, k // 128)
    return Tile("few", 32, columns=32, depth=128, warps=4, stages=4, split=split)


def _split(family: Family, bucket: int, tile: tuple[int, int], columns: int, steps: int) -> int:
    """The least power of two up to 8 that makes enough programs and leaves each four steps."""
    tiles = -(-bucket // tile[0]) * -(-columns // tile[1])
    split = 1
    while split < 8 and tiles * split < PROGRAMS[family] and steps >= 8 * split:
        split *= 2
    while split > 1 and (split * tiles * tile[0] * tile[1] > MAX_CELLS or tiles > MAX_TILES):
        split //= 2
    return split
