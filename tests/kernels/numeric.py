"""Comparisons of tensors: bit for bit, or by the relative L2 norm in float64."""

from __future__ import annotations

import mmap

import torch


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one shape, one dtype and the same bits (NaN equals itself)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (value.detach().cpu().contiguous().reshape(-1) for value in (one, other))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def relative_l2(value: torch.Tensor, reference: torch.Tensor) -> float:
    """|value - reference| / |reference| in float64; NaN or a wrong shape never passes a bound."""
    if value.shape != reference.shape:
        return float("nan")
    have, want = value.detach().double().cpu(), reference.detach().double().cpu()
    norm = float(want.norm())
    return float((have - want).norm()) / norm if norm else float((have - want).norm())


def untouched_zeros(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Zeros (uint8) for tests of large offsets: on the CPU what nobody touches takes no memory."""
    if device.type == "cpu":
        return torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)
    return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
