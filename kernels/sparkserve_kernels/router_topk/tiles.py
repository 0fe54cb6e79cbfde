"""Launch shapes by the number of rows; they never change a bit of the result."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve_kernels.target import Family


@dataclass(frozen=True)
class Tile:
    """How many rows a program routes, one after the other, and with how many warps."""

    rows: int
    warps: int


FEW_ROWS = 16384

TILES: dict[Family, tuple[Tile, Tile]] = {
    "spark": (Tile(1, 1), Tile(2, 1)),
    "hopper": (Tile(1, 1), Tile(2, 1)),
}
"""Per family: few rows, many rows. No Spark was measured: its row follows the H200's."""


def tile_for(family: Family, rows: int) -> Tile:
    """The tile for a number of rows."""
    few, many = TILES[family]
    return few if rows <= FEW_ROWS else many
