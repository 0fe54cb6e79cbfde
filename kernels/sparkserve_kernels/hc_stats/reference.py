"""The same gates and matrix in plain torch; given float64 tensors it computes in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.hc_stats.api import HC_EPS, ITERATIONS, RMS_EPS, STREAMS, HcStats
from sparkserve_kernels.hc_stats.tiles import Mode

if TYPE_CHECKING:
    import torch


def hc_stats(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    parts: torch.Tensor | None = None,
    mode: Mode | None = None,
    rms_eps: float = RMS_EPS,
    hc_eps: float = HC_EPS,
    rows_hint: int | None = None,
) -> HcStats:
    """As ``api.hc_stats``, in fn's dtype; parts, mode and rows_hint change nothing."""
    import torch

    x = residual.flatten(1).to(fn.dtype)
    mixes = (x @ fn.T) * torch.rsqrt(x.square().mean(-1, keepdim=True) + rms_eps)
    pre = torch.sigmoid(mixes[:, :4] * scale[0] + base[:4]) + hc_eps
    post = 2 * torch.sigmoid(mixes[:, 4:8] * scale[1] + base[4:8])
    logits = (mixes[:, 8:] * scale[2] + base[8:]).view(-1, STREAMS, STREAMS)
    comb = torch.softmax(logits, -1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(ITERATIONS - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    return HcStats(pre, post, comb)
