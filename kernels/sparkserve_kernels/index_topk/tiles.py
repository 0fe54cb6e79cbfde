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
BLOCKS = SelectTile(k=2048, capacity=4096, chunk=512, step=1024, warps=8)

SLOTS_WARPS = 4
ROWS_UNSPLIT = 512
"""From so many rows on, one program per row fills the GPU."""
PROGRAMS = 512
"""Programs wanted where rows are fewer."""
SEGMENT_AT_LEAST = 4096


def segment_count(rows: int, length: int) -> int:
    """Into how many segments a row is split; the result does not depend on it."""
    if rows >= ROWS_UNSPLIT or length <= SEGMENT_AT_LEAST:
        return 1
    return max(1, min(-(-length // SEGMENT_AT_LEAST), PROGRAMS // rows))
