"""A sublayer's input: the residual streams combined, and normed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_contiguous_rows,
    require_dtype,
    require_multiple,
    require_rows_apart,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.hc_combine_norm.tiles import WARPS, halves
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["hc_combine_norm", "is_supported", "launch"]

STREAMS = 4
RMS_EPS = 1e-20
"""The model's rms_norm_eps."""


def is_supported(residual: torch.Tensor) -> bool:
    """Whether the kernel runs where this tensor lies."""
    return supports(residual)


def hc_combine_norm(
    residual: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float = RMS_EPS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Combine the streams by their gates, round to bf16, and norm.

    residual: [M, 4, H] bf16, a row's 4*H values together, rows may lie apart. M may be 0, H is a
        multiple of 16 from 32 up.
    pre: [M, 4] fp32, contiguous: the gates, of the sublayer before.
    weight: [H] bf16 or fp32, of the norm.
    out: [M, H] bf16, rows may lie apart; None for a new tensor.

    Returns:
        [M, H] bf16. The combination has the bits of fp32 torch, stream after stream; a row
        depends on nothing but itself, and its bits not on M.

    Raises:
        KernelArgumentError: a wrong shape, dtype or layout.
        UnsupportedDevice: no kernel for where residual lies.

    Notes:
        Hyper-connections: Zhu et al., ICLR 2025.
    """
    import torch

    require_shape("residual", residual, (None, STREAMS, None))
    rows, _, hidden = residual.shape
    if out is None:
        out = torch.empty((rows, hidden), dtype=torch.bfloat16, device=residual.device)
    _check(residual, pre, weight, out)
    if rows == 0:
        return out
    return launch(residual, pre, weight, out, WARPS[target_of(residual).family], eps=eps)


def _check(
    residual: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
) -> None:
    import torch

    rows, _, hidden = residual.shape
    require_multiple("width of residual", hidden, 16)
    if hidden < 32:
        raise KernelArgumentError(f"width of residual = {hidden}, expected at least 32")
    require_dtype("residual", residual, torch.bfloat16)
    require_shape("pre", pre, (rows, STREAMS))
    require_dtype("pre", pre, torch.float32)
    require_contiguous("pre", pre)
    require_shape("weight", weight, (hidden,))
    require_dtype("weight", weight, torch.bfloat16, torch.float32)
    require_contiguous("weight", weight)
    require_shape("out", out, (rows, hidden))
    require_dtype("out", out, torch.bfloat16)
    require_contiguous_rows("out", out)
    if rows:
        require_contiguous("row of residual", residual[0])
        require_multiple("row stride of residual", residual.stride(0), 8)
        require_multiple("row stride of out", out.stride(0), 8)
    require_rows_apart("out", out)
    require_same_device(residual=residual, pre=pre, weight=weight, out=out)


def launch(
    residual: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    warps: int,
    *,
    eps: float = RMS_EPS,
) -> torch.Tensor:
    """Run the kernel with so many warps, without checks."""
    from sparkserve_kernels.hc_combine_norm.kernel import combine_norm_kernel

    rows, _, hidden = residual.shape
    head, tail = halves(hidden)
    combine_norm_kernel[(rows,)](
        residual,
        pre,
        weight,
        out,
        residual.stride(0),
        out.stride(0),
        eps,
        HIDDEN=hidden,
        HEAD=head,
        TAIL=tail,
        INTERPRETED=target_of(residual).interpreted,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return out
