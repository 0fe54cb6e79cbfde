"""Launch shapes; the same at every batch, so that a request's bits depend on that request alone."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve_kernels.target import Family


@dataclass(frozen=True)
class Tile:
    """How a vocabulary is cut."""

    columns: int
    """Tokens whose mass a program sums."""
    warps: int
    counters: int
    """Random counters, four tokens each, that a program of the race draws."""
    race_warps: int


TILES: dict[Family, Tile] = {
    "spark": Tile(columns=4096, warps=8, counters=256, race_warps=4),
    "hopper": Tile(columns=4096, warps=8, counters=256, race_warps=4),
}
"""No Spark was measured: its row follows the H200's."""
