"""Public functions of the MXFP8 row quantiser."""

from __future__ import annotations

import torch

from sparkserve_kernels import target
from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous_rows,
    require_dtype,
    require_multiple,
    require_shape,
)
from sparkserve_kernels.mxfp8_quant import kernel
from sparkserve_kernels.mxfp8_quant.reference import Layout
from sparkserve_kernels.mxfp8_quant.tiles import MANY, Tile, tile_for
from sparkserve_kernels.numerics.rules import GROUP
from sparkserve_kernels.numerics.scales import swizzled_bytes


def is_supported(x: torch.Tensor) -> bool:
    """Whether the kernel runs on this tensor's device."""
    return target.supports(x)


def mxfp8_quant(x: torch.Tensor, layout: Layout = "linear") -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows to e4m3 with one e8m0 scale per 32 columns (docs/format/numbers.md).

    x: (M, K), bf16 or fp32, K a multiple of 32; rows may lie apart, columns not.
    layout: ``linear`` gives scales (M, K/32); ``128x4`` gives them swizzled and flat, rows padded
    to 128 and groups to 4 with byte 0.

    Gives q (M, K) float8_e4m3fn and scales uint8, both contiguous and new. Exact: equal bit for
    bit to ``reference.mxfp8_quant``; a row's bits depend on that row alone.

    Notes:
        A NaN becomes NaN and takes no part in its group's scale. A group that is all zero, or at
        most 448 * 2^-127, gets scale 0 and zeros with their signs. No rows give empty results.

    Raises:
        KernelArgumentError: shape, dtype, stride or layout.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.
    """
    require_shape("x", x, (None, None))
    require_dtype("x", x, torch.bfloat16, torch.float32)
    require_contiguous_rows("x", x)
    rows, columns = x.shape
    require_multiple("K", columns, GROUP)
    if layout not in ("linear", "128x4"):
        raise KernelArgumentError(f"layout {layout!r}, expected 'linear' or '128x4'")
    q = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=x.device)
    shape: tuple[int, ...] = (rows, columns // GROUP)
    if layout == "128x4":
        shape = (swizzled_bytes(*shape),)
    scales = torch.empty(shape, dtype=torch.uint8, device=x.device)
    if scales.numel() > 2**31 - MANY.block:
        raise KernelArgumentError(f"x has {scales.numel()} groups, expected fewer than 2^31")
    if scales.numel():
        launch(x, q, scales, tile_for(scales.numel()))
    return q, scales


def launch(x: torch.Tensor, q: torch.Tensor, scales: torch.Tensor, tile: Tile) -> None:
    """Quantise x into q and scales, whose number of axes tells their layout.

    q: (M, K), float8_e4m3fn, contiguous; scales: (M, K/32) linear, or flat in the 128x4 layout.
    """
    rows, columns = x.shape
    groups = columns // GROUP
    swizzled = scales.ndim == 1
    out_groups = -(-groups // 4) * 4 if swizzled else groups
    kernel.mxfp8_quant_kernel[(-(-scales.numel() // tile.block),)](
        x,
        q.view(torch.uint8),
        scales,
        rows,
        groups,
        scales.numel() // out_groups,
        out_groups,
        x.stride(0),
        SWIZZLED=swizzled,
        BLOCK=tile.block,
        INTERPRETED=target.target_of(x).interpreted,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
