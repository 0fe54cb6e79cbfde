"""Launch shape: small enough to run beside any other kernel."""

from __future__ import annotations

PIECE_BYTES = 16 << 10
"""What one instruction asks for."""
MAX_BLOCKS = 8
THREADS = 64
WARPS = THREADS // 32
ALIGNMENT_BYTES = 16
"""Of a piece's address and size, as the instruction wants them."""


def blocks_for(pieces: int) -> int:
    """Blocks of a launch: a warp per piece, as far as the blocks reach."""
    return min(MAX_BLOCKS, -(-pieces // WARPS))
