"""How far two runs of the same items agree: the floor below which a difference means nothing.

Greedy decoding is not reproducible (kernels, batch composition and speculation change the order of
sums), so equal weights differ by some items on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """Runs of the same items, compared item by item."""

    items: int
    agreeing: int
    """Items that came out alike in every run."""
    scores: tuple[int, ...]
    """Items passed per run."""

    @property
    def share(self) -> float:
        """Agreeing items over all items."""
        return self.agreeing / self.items

    @property
    def floor_items(self) -> int:
        """Items that differ without any cause that was put there."""
        return self.items - self.agreeing

    @property
    def delta_items(self) -> int:
        """Difference between the best and the worst run."""
        return max(self.scores) - min(self.scores)

    def within_floor(self, delta_items: float) -> bool:
        """Whether a difference is no larger than what repeating alone brings about."""
        return abs(delta_items) <= self.floor_items


def agreement(runs: Sequence[Sequence[bool]]) -> Agreement:
    """Compare runs item by item.

    runs: [runs][items], at least two runs of the same items.

    Raises:
        ValueError: fewer than two runs, no items, or runs of different lengths.
    """
    lengths = {len(run) for run in runs}
    if len(runs) < 2 or len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"two runs of the same items are compared, got {sorted(lengths)} items")
    agreeing = sum(len(set(item)) == 1 for item in zip(*runs, strict=True))
    return Agreement(lengths.pop(), agreeing, tuple(sum(run) for run in runs))
