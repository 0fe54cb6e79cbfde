"""Padding along K, as torch's own padding does it."""

from __future__ import annotations

import torch
from torch.nn.functional import pad


def pad_k(
    weight: torch.Tensor, grid: torch.Tensor, multiple: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight with zeros and grid with ones behind; see ``api.pad_k``."""
    missing = -weight.shape[1] % multiple
    padded = pad(weight.view(torch.uint8), (0, missing))
    return padded.view(torch.float8_e4m3fn), pad(grid, (0, missing // 32), value=1.0)


def padded_k(k: int, multiple: int = 128) -> int:
    """The least multiple that is not below k; see ``api.padded_k``."""
    return k + -k % multiple
