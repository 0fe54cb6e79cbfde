"""Which rows and keys are scored at a time, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkserve_kernels.checks import KernelArgumentError

ALIGNMENT_KEYS = 4096


@dataclass(frozen=True)
class Budget:
    """Bounds of the scores that exist at a time: rows * keys * 4 bytes."""

    score_bytes: int = 512 << 20
    block_keys: int = 32768
    """Keys scored at a time where rows are many; fewer rows take larger blocks."""

    def __post_init__(self) -> None:
        """Refuse what cannot hold one row of one block."""
        if self.block_keys < 1 or self.score_bytes < 4 * self.block_keys:
            raise KernelArgumentError(
                f"budget of {self.score_bytes} bytes, expected at least {4 * self.block_keys} for "
                f"one row of {self.block_keys} keys"
            )

    def keys_at_a_time(self, rows: int, keys: int) -> int:
        """Length of a key block: block_keys, or more where the budget allows it for all rows."""
        fits = self.score_bytes // (4 * max(rows, 1)) // ALIGNMENT_KEYS * ALIGNMENT_KEYS
        return max(1, min(keys, max(self.block_keys, fits)))

    def rows_at_a_time(self, keys: int) -> int:
        """Rows whose scores of so many keys fit."""
        return max(1, self.score_bytes // (4 * max(keys, 1)))


def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of at most step."""
    return ((begin, min(begin + step, length)) for begin in range(0, length, step))
