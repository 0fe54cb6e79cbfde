"""Launch shapes by the number of ids; every rank with the same ids takes the same one."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve_kernels.target import Family


@dataclass(frozen=True)
class Tile:
    """How many ids a program decodes, and with how many warps."""

    rows: int
    warps: int


FEW_IDS = 2048
"""Up to here one program per few ids: what counts is that the loads of all ids run at once."""

TILES: dict[Family, tuple[Tile, Tile]] = {
    "spark": (Tile(2, 2), Tile(8, 4)),
    "hopper": (Tile(2, 2), Tile(8, 4)),
}
"""Per family: few ids, many ids. No Spark was measured: its row follows the H200's."""


def tile_for(family: Family, ids: int) -> Tile:
    """The tile for a number of ids."""
    few, many = TILES[family]
    return few if ids <= FEW_IDS else many
