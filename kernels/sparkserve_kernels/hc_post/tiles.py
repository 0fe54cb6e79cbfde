"""Launch shapes; they never change a bit of the result."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve_kernels.target import Family


@dataclass(frozen=True)
class Tile:
    """Columns a program mixes, and its warps."""

    columns: int
    warps: int


TILES: dict[Family, Tile] = {"spark": Tile(512, 4), "hopper": Tile(512, 4)}
"""Per family, for any number of rows. No Spark was measured: its tile is the H200's."""
