"""Tiles of the selection kernel: a fixed table by how many are selected."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SelectTile:
    """How one program walks over a row."""

    k: int
    capacity: int
    """Entries of the survivors' buffer: a power of two, at least k + chunk."""
    chunk: int
    step: int
    """Entries that move at a time when the best are kept."""
    warps: int
    registers: int = 128
    """Bound per thread: left alone, ptxas spills a few of them to fit one more block."""

    def __post_init__(self) -> None:
        """Refuse a buffer that could overflow."""
        if self.capacity < self.k + self.chunk:
            raise ValueError(
                f"capacity {self.capacity}, expected at least {self.k} + {self.chunk} entries"
            )


KEYS = SelectTile(k=512, capacity=1024, chunk=512, step=256, warps=2)
KEYS_OF_FEW = SelectTile(k=512, capacity=4096, chunk=2048, step=1024, warps=8, registers=160)
"""For so few rows that one walk's latency counts, not how many run at a time."""
BLOCKS = SelectTile(k=2048, capacity=4096, chunk=512, step=1024, warps=8)

SLOTS_WARPS = 4
FEW_ROWS = 64
ROWS_UNSPLIT = 512
"""From so many rows on, one program per row fills the GPU."""
SEGMENT_AT_LEAST = 8192
SEGMENTS_AT_MOST = 16
"""More make the merge longer than they make the walks shorter."""


def key_tile(rows: int) -> SelectTile:
    """The tile for selecting keys; the result does not depend on it."""
    return KEYS_OF_FEW if rows <= FEW_ROWS else KEYS


def segment_count(rows: int, length: int) -> int:
    """Into how many segments a row is split; the result does not depend on it."""
    if rows >= ROWS_UNSPLIT:
        return 1
    wanted = min(-(-length // SEGMENT_AT_LEAST), SEGMENTS_AT_MOST, ROWS_UNSPLIT // max(rows, 1))
    return max(1, wanted)
