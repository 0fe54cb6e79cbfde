"""The same rule in plain torch."""

from __future__ import annotations

import torch

from sparkserve_kernels.live_lengths.rules import LiveRule


def live_lengths(confidence: torch.Tensor, rule: LiveRule, out: torch.Tensor) -> torch.Tensor:
    """As ``api.live_lengths``, bit for bit on fp32."""
    clamped = confidence.clamp(0.0, 1.0)
    product = torch.ones_like(confidence[:, 0])
    going = torch.ones_like(product, dtype=torch.bool)
    kept = torch.zeros_like(product, dtype=torch.int64)
    for draft, threshold in enumerate(rule.as_fp32):
        product = product * clamped[:, draft]
        going = going & (product >= threshold)
        kept += going
    out[: len(kept)] = 1 + kept.clamp(min=rule.at_least)
    return out
