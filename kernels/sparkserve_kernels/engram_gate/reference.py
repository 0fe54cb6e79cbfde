"""The same gate in plain torch; given float64 tensors it computes in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.engram_gate.api import RMS_EPS, Images

if TYPE_CHECKING:
    import torch


def engram_gate(
    x: torch.Tensor,
    kv: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    images: Images | None = None,
    *,
    eps: float = RMS_EPS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``api.engram_gate``; also on float32 and float64, whose results have that dtype."""
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    rows, streams, hidden = x.shape
    stream = x.to(wide)
    key = kv[:, : streams * hidden].view(rows, streams, hidden).to(wide)
    value = kv[:, streams * hidden :].to(wide)
    weight = weights[0].to(wide) * weights[1].to(wide)
    dot = (stream * weight * key).sum(-1, keepdim=True)
    for normed in (stream, key):
        dot = dot * torch.rsqrt(normed.square().mean(-1, keepdim=True) + eps)
    dot = dot * hidden**-0.5
    root = dot.abs().clamp(min=1e-6).sqrt()
    gate = torch.sigmoid(torch.where(dot < 0, -root, root))
    mixed = (stream + gate * value[:, None]).to(x.dtype)
    if images is not None:
        mixed = torch.where((images.tokens == images.image_token)[:, None, None], x, mixed)
    return mixed if out is None else out.copy_(mixed)
