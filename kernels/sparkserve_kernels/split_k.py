"""Memory in which programs that share a tile leave their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkserve_kernels.checks import KernelArgumentError, require_contiguous, require_dtype

if TYPE_CHECKING:
    import torch

MAX_CELLS = 1 << 22
"""fp32 partial sums that one call may leave in a workspace."""
MAX_TILES = 1 << 14
"""Tiles that one split call may have."""


@dataclass(frozen=True)
class SplitWorkspace:
    """Partial sums, and how many programs of each tile have arrived.

    Whoever calls a linear again and again keeps one per stream: calls that may run at the
    same time must not share it. Every call leaves all arrivals at 0, so it can be captured in a
    CUDA graph and needs no clearing.
    """

    partials: torch.Tensor
    """(cells,), fp32; never cleared."""
    arrivals: torch.Tensor
    """(tiles,), int32, all 0 between calls."""

    @classmethod
    def on(
        cls, device: torch.device, *, cells: int = MAX_CELLS, tiles: int = MAX_TILES
    ) -> SplitWorkspace:
        """A workspace for any call (16 MiB), or of just so many partial sums and tiles."""
        import torch

        return cls(
            partials=torch.empty(cells, dtype=torch.float32, device=device),
            arrivals=torch.zeros(tiles, dtype=torch.int32, device=device),
        )

    def clear(self) -> None:
        """Start anew after a launch that did not come to its end.

        Its arrivals stay counted, and every later sum of that tile would be wrong.
        """
        self.arrivals.zero_()

    def require(self, *, cells: int, tiles: int, device: torch.device) -> None:
        """Refuse a call that does not fit.

        Raises:
            KernelArgumentError: too small, of another dtype, with gaps, or on another device.
        """
        if self.partials.numel() < cells or self.arrivals.numel() < tiles:
            raise KernelArgumentError(
                f"workspace of {self.partials.numel()} partial sums and {self.arrivals.numel()} "
                f"tiles, expected at least {cells} and {tiles}"
            )
        import torch

        require_dtype("workspace.partials", self.partials, torch.float32)
        require_dtype("workspace.arrivals", self.arrivals, torch.int32)
        for name, part in (("partials", self.partials), ("arrivals", self.arrivals)):
            require_contiguous(f"workspace.{name}", part)
            if part.device != device:
                raise KernelArgumentError(
                    f"workspace.{name} on {part.device}, expected {device} as x"
                )
