"""The same mix in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.hc_post.api import STREAMS

if TYPE_CHECKING:
    import torch


def hc_post(
    residual: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``api.hc_post``, computed in post's dtype; a float64 residual gives float64."""
    wide = residual.to(post.dtype)
    mixed = comb[:, 0, :, None] * wide[:, :1]
    for stream in range(1, STREAMS):
        mixed = mixed + comb[:, stream, :, None] * wide[:, stream : stream + 1]
    result = (post[:, :, None] * x.to(post.dtype)[:, None] + mixed).to(residual.dtype)
    return result if out is None else out.copy_(result)
