"""Launch shapes by capacity: a fixed table, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sparkserve_kernels.target import Family

Core = Literal["scaled", "codes", "values"]
"""How operands reach the matrix unit. ``scaled``: e4m3 with block scales (Spark). ``codes``: fp16
without scales, each group's sum scaled after it (Hopper, few rows). ``values``: bf16 with the
scales multiplied in (Hopper, many rows)."""


@dataclass(frozen=True)
class Shape:
    """One product's launch."""

    columns: int
    """Output columns of a program (of FC1: of up and of gate, each)."""
    depth: int
    """K of one step."""
    warps: int
    stages: int


@dataclass(frozen=True)
class Tile:
    """One row bucket."""

    core: Core
    routes: int
    """Routes of one expert that a program multiplies."""
    fc1: Shape
    fc2: Shape
    ahead: bool = False
    """Launch each kernel while the one before it still runs (core ``codes`` only)."""
    parts: int = 1
    """Sums into which FC1's K is cut (core ``codes`` only); the bits depend on it."""
    split: bool = False
    """One program per part: few routes alone leave processors idle. Changes no bit."""


SPARK_FEW = Tile("scaled", 16, Shape(32, 128, 4, 3), Shape(64, 64, 2, 4))
SPARK_MANY = Tile("scaled", 64, Shape(64, 64, 8, 3), Shape(128, 64, 8, 3))
HOPPER_SOME = Tile("codes", 8, Shape(32, 256, 4, 4), Shape(64, 64, 2, 6), ahead=True, parts=2)
HOPPER_FEW = replace(HOPPER_SOME, split=True)
SPLIT_ROWS = 16
HOPPER_MANY = Tile("values", 64, Shape(64, 64, 4, 4), Shape(128, 64, 4, 4))

TABLE: dict[Family, tuple[tuple[int, Tile], ...]] = {
    "spark": ((1024, SPARK_FEW), (4096, SPARK_MANY)),
    "hopper": ((SPLIT_ROWS, HOPPER_FEW), (512, HOPPER_SOME), (4096, HOPPER_MANY)),
}
"""Largest capacity of each bucket. On the Spark, by what others report, 64 routes a tile pay
from 2,048 rows on."""


def tile_for(capacity: int, family: Family) -> Tile:
    """The bucket of a capacity."""
    return next(tile for largest, tile in TABLE[family] if capacity <= largest)


@dataclass(frozen=True)
class QuantiserShape:
    """The prologue's launch; it never changes a bit."""

    block: int
    """Groups of 32 a program quantises."""
    warps: int


def prologue_shape(groups: int) -> QuantiserShape:
    """Few groups spread over the GPU, many fill it in any case."""
    return QuantiserShape(16, 4) if groups <= 16384 else QuantiserShape(128, 4)


PLAN_BLOCK = 1024
"""Routes a program of the many-route planner looks at together."""
REDUCE_COLUMNS = 512


def launch_options(tile: Tile) -> dict[str, bool]:
    """Of the products and the sum: launched ahead of the kernel before, or as any kernel is."""
    return {"launch_pdl": True} if tile.ahead else {}
