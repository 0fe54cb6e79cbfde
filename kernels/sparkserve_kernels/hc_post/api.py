"""The residual streams after a sublayer."""

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
from sparkserve_kernels.hc_post.tiles import TILES, Tile
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["hc_post", "is_supported", "launch"]

STREAMS = 4


def is_supported(residual: torch.Tensor) -> bool:
    """Whether the kernel runs where this tensor lies."""
    return supports(residual)


def hc_post(
    residual: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mix the streams among themselves and add the sublayer's output to each.

    residual: [M, 4, H] bf16, a row's 4*H values together, rows may lie apart. M may be 0, H is a
        multiple of 16.
    x: [M, H] bf16, output of the sublayer, last axis without gaps.
    post: [M, 4] fp32, contiguous.
    comb: [M, 4, 4] fp32, contiguous; [.., k, j] is what stream k gives to stream j.
    out: [M, 4, H] bf16, laid out as residual; residual itself is allowed; None for a new tensor.

    Returns:
        [M, 4, H] bf16, with the bits of fp32 torch: streams in order, then post * x + their sum,
        one rounding. NaN may have other bits.

    Raises:
        KernelArgumentError: a wrong shape, dtype or layout.
        UnsupportedDevice: no kernel for where residual lies.

    Notes:
        Hyper-connections: Zhu et al., ICLR 2025.
    """
    import torch

    if out is None:
        out = torch.empty(residual.shape, dtype=torch.bfloat16, device=residual.device)
    _check(residual, x, post, comb, out)
    if residual.shape[0] == 0:
        return out
    return launch(residual, x, (post, comb), out, TILES[target_of(residual).family])


def _check(
    residual: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    out: torch.Tensor,
) -> None:
    import torch

    require_shape("residual", residual, (None, STREAMS, None))
    rows, _, hidden = residual.shape
    require_multiple("width of residual", hidden, 16)
    if hidden == 0:
        raise KernelArgumentError("width of residual = 0, expected at least 16")
    require_shape("x", x, (rows, hidden))
    require_contiguous_rows("x", x)
    require_shape("post", post, (rows, STREAMS))
    require_shape("comb", comb, (rows, STREAMS, STREAMS))
    require_shape("out", out, (rows, STREAMS, hidden))
    for name, tensor in {"post": post, "comb": comb}.items():
        require_dtype(name, tensor, torch.float32)
        require_contiguous(name, tensor)
    for name, tensor in {"residual": residual, "x": x, "out": out}.items():
        require_dtype(name, tensor, torch.bfloat16)
        if rows:
            require_contiguous(f"row of {name}", tensor[0])
            require_multiple(f"row stride of {name}", tensor.stride(0), 8)
    require_rows_apart("out", out)
    require_same_device(residual=residual, x=x, post=post, comb=comb, out=out)


def launch(
    residual: torch.Tensor,
    x: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    tile: Tile,
) -> torch.Tensor:
    """Run the kernel in one tile, without checks; gates: post and comb."""
    import triton

    from sparkserve_kernels.hc_post.kernel import post_kernel

    rows, _, hidden = residual.shape
    post_kernel[(rows * triton.cdiv(hidden, tile.columns),)](
        residual,
        x,
        *gates,
        out,
        residual.stride(0),
        x.stride(0),
        out.stride(0),
        HIDDEN=hidden,
        COLUMNS=tile.columns,
        INTERPRETED=target_of(residual).interpreted,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
    return out
