"""Launch shapes: one for any number of tokens, since integer results depend on none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Tokens or requests of a program, and its warps."""

    size: int
    warps: int
    chunk: int = 64
    """Run ends that are compared at once."""


HASH = Tile(16, 4)
"""16 tokens by 8 heads: one id per thread."""
ADVANCE = Tile(32, 4)
