"""Launch shapes by the number of rows; every rank with the same rows takes the same one."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve_kernels.target import Family


@dataclass(frozen=True)
class Tile:
    """How many tokens a program takes, and its warps.

    The warps fix the order of the sums, so all tiles of a family have the same.
    """

    rows: int
    warps: int


FEW_ROWS = 512
"""Up to here one program per token and stream: fewer would leave processors idle."""

TILES: dict[Family, tuple[Tile, Tile]] = {
    "spark": (Tile(1, 4), Tile(4, 4)),
    "hopper": (Tile(1, 4), Tile(4, 4)),
}
"""Per family: few rows, many rows. No Spark was measured: its row follows the H200's."""


def tile_for(family: Family, rows: int) -> Tile:
    """The tile for a number of rows."""
    few, many = TILES[family]
    return few if rows <= FEW_ROWS else many


def halves(hidden: int) -> tuple[int, int]:
    """A width as the largest power of two below it, and a power of two that covers the rest."""
    head = 1 << ((hidden - 1).bit_length() - 1)
    return head, 1 << (hidden - head - 1).bit_length()
