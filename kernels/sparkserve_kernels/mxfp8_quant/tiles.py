"""Launch shapes by the number of groups; they never change a bit of the result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One launch shape."""

    block: int
    """Groups of 32 a program quantises."""
    warps: int


FEW = Tile(block=8, warps=1)
"""Up to ``FEW_GROUPS``: a decode step, where the spread over the GPU decides."""
MANY = Tile(block=32, warps=2)
FEW_GROUPS = 4096


def tile_for(groups: int) -> Tile:
    """The launch shape for so many groups in all rows together."""
    return FEW if groups <= FEW_GROUPS else MANY
