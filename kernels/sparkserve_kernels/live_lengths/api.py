"""How many rows of each request a verify step keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.live_lengths.rules import (
    SLOTS,
    LiveRule,
    by_position,
    by_threshold,
    check,
    fixed,
    parse,
)
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = [
    "LiveRule",
    "by_position",
    "by_threshold",
    "fixed",
    "is_supported",
    "live_lengths",
    "new_buffer",
    "parse",
]


def is_supported(confidence: torch.Tensor) -> bool:
    """Whether the kernel runs where these confidences lie."""
    return supports(confidence)


def new_buffer(device: torch.device, rows_per_request: int = 6) -> torch.Tensor:
    """[64] int64, all rows alive: made once, before a graph is captured that reads it."""
    import torch

    return torch.full((SLOTS,), rows_per_request, dtype=torch.int64, device=device)


def live_lengths(confidence: torch.Tensor, rule: LiveRule, out: torch.Tensor) -> torch.Tensor:
    """Write 1 + k for every request: its anchor and the k drafts worth verifying.

    confidence: [requests, drafts] fp32, at most 64 requests; rows may lie apart.
    out: [64] int64; lengths beyond the requests stay as they are.

    Returns:
        ``out``. k counts the leading drafts whose product of confidences, each clamped to 0..1 and
        multiplied in fp32 from the first on, is at least the threshold (equal is enough), and is
        never less than ``rule.at_least``.

    Raises:
        KernelArgumentError: a wrong shape or dtype, or too many requests.
        UnsupportedDevice: no kernel for where the confidences lie.

    Notes:
        A confidence of NaN reaches no threshold, and none after it does. A draft's confidence may
        only depend on drafts before it: then this stops sampling without changing its law.
    """
    check(confidence, rule, out)
    requests = confidence.shape[0]
    if requests == 0:
        return out
    target_of(confidence)
    from sparkserve_kernels.live_lengths.kernel import live_lengths_kernel

    thresholds = (*rule.as_fp32, *(0.0,) * (5 - rule.drafts))
    live_lengths_kernel[(1,)](
        confidence,
        out,
        *thresholds,
        requests,
        confidence.stride(0),
        rule.at_least,
        DRAFTS=rule.drafts,
        BLOCK=SLOTS,
        num_warps=2,
        enable_fp_fusion=False,
    )
    return out
