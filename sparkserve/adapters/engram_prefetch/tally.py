"""Counts rows that two lookups gave and in which they differ, without stopping the device."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)


class Tally:
    """One layer's counts."""

    def __init__(self, layer: int, device: torch.device) -> None:
        self._layer = layer
        # [rows compared, rows that differ]
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        # Read by the statistics thread, which must not call CUDA while a graph is captured.
        self._shown = torch.zeros(2, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._told = False

    def add(self, rows: torch.Tensor, again: torch.Tensor) -> None:
        """Compare two results bit by bit, in the current stream.

        rows, again: [..., dim] bfloat16.
        """
        differs = (rows.view(torch.int16) != again.view(torch.int16)).any(-1)
        self._counts[0] += differs.numel()
        self._counts[1] += differs.sum()
        self._shown.copy_(self._counts, non_blocking=True)

    def counters(self) -> dict[str, int]:
        """``checked_rows`` and ``differing_rows`` (expected 0)."""
        checked, differing = self._shown.tolist()
        if differing and not self._told:
            self._told = True
            logger.error(
                "sparkserve: engram_prefetch: %d of %d rows of layer %d differ from the engine's "
                "own path, expected none",
                differing,
                checked,
                self._layer,
            )
        return {"checked_rows": checked, "differing_rows": differing}
