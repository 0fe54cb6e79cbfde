"""The same combination and norm in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.hc_combine_norm.api import RMS_EPS, STREAMS

if TYPE_CHECKING:
    import torch


def hc_combine_norm(
    residual: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float = RMS_EPS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``api.hc_combine_norm``, computed in pre's dtype; a float64 residual gives float64."""
    import torch

    wide = residual.to(pre.dtype)
    y = wide[:, 0] * pre[:, :1]
    for stream in range(1, STREAMS):
        y = y + wide[:, stream] * pre[:, stream : stream + 1]
    y = y.to(residual.dtype).to(pre.dtype)
    normed = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.to(pre.dtype)
    result = normed.to(residual.dtype)
    return result if out is None else out.copy_(result)
