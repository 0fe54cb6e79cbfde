"""Public functions of the MXFP8 linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkserve_kernels.checks import (
    KernelArgumentError,
    at_most,
    require_contiguous,
    require_contiguous_rows,
    require_dtype,
    require_multiple,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.mxfp8_linear.tiles import Tile, tile_for
from sparkserve_kernels.numerics.rules import GROUP
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

    from sparkserve_kernels.split_k import SplitWorkspace


def is_supported(x: torch.Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return supports(x)


def mxfp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    x_scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    rows_hint: int | None = None,
    columns_hint: int | None = None,
    workspace: SplitWorkspace | None = None,
) -> torch.Tensor:
    """Multiply MXFP8 rows by the transpose of an MXFP8 weight, with fp32 sums and bf16 results.

    x: (M, K) bf16, quantised by the canonical rule (``mxfp8_quant``); or float8_e4m3fn with
        x_scales. K is a multiple of 32; rows may lie apart, columns not.
    weight: (N, K), float8_e4m3fn.
    weight_scales: (N, K/32), uint8 (e8m0), linear.
    x_scales: (M, K/32), uint8 (e8m0), linear; with a quantised x only.
    bias: (N,), bf16 or fp32.
    rows_hint: rows by which the launch shape is chosen, where a caller shares the rows out.
    columns_hint: the same of N, where ranks share the columns of one layer out: each then gives
        the bits of the whole layer.
    workspace: of the caller's stream, for calls that split K; None allocates and clears one.

    Returns:
        (M, N) bf16, contiguous and new. Within 2e-3 (relative L2 of many outputs of like size) of
        float64 on the dequantised operands: nearly all of it is the rounding to bf16, which can
        move a single output by 2^-8 of itself. Runs repeat bit for bit; a row's bits depend on
        that row and, for one layer, on the bucket that rows_hint (or M) falls into, nothing else
        (a slice of the columns may be summed in another order, unless columns_hint names the
        whole layer's N); padding K to the next multiple of 128 with zeros changes none.

    Raises:
        KernelArgumentError: a wrong shape, dtype, layout or device, x_scales without a quantised
            x or the other way round, more rows or columns than their hint, too small a workspace.
        UnsupportedDevice: no kernel for where x lies.

    Notes:
        Numbers and scales: docs/format/numbers.md. M or N of 0 give an empty result; K = 0 is
        refused. A weight scale of 255 (e8m0's NaN, never emitted) gives no finite result.
    """
    _check(x, weight, weight_scales, x_scales=x_scales, bias=bias)
    columns, k = weight.shape
    rows_at_most = at_most("x", x.shape[0], "rows_hint", rows_hint)
    columns_at_most = at_most("weight", columns, "columns_hint", columns_hint)
    import torch

    out = torch.empty((x.shape[0], columns), dtype=torch.bfloat16, device=x.device)
    if out.numel() == 0:
        return out
    tile = tile_for(target_of(x).family, rows_at_most, columns_at_most, k)
    if x_scales is None and not tile.fuse:
        from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant

        x, x_scales = mxfp8_quant(x)
    launch((x, x_scales), (weight, weight_scales), out, tile, bias=bias, workspace=workspace)
    return out


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    x_scales: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    import torch

    require_shape("weight", weight, (None, None))
    columns, k = weight.shape
    require_multiple("K", k, GROUP)
    if k == 0:
        raise KernelArgumentError(f"K = 0, expected at least {GROUP}")
    require_shape("x", x, (None, k))
    require_dtype("weight", weight, torch.float8_e4m3fn)
    require_shape("weight_scales", weight_scales, (columns, k // GROUP))
    require_dtype("weight_scales", weight_scales, torch.uint8)
    named = {"x": x, "weight": weight, "weight_scales": weight_scales}
    if x_scales is None:
        require_dtype("x without x_scales", x, torch.bfloat16)
    else:
        require_dtype("x with x_scales", x, torch.float8_e4m3fn)
        require_shape("x_scales", x_scales, (x.shape[0], k // GROUP))
        require_dtype("x_scales", x_scales, torch.uint8)
        named["x_scales"] = x_scales
    for name, tensor in named.items():
        require_contiguous_rows(name, tensor)
    if bias is not None:
        require_shape("bias", bias, (columns,))
        require_dtype("bias", bias, torch.bfloat16, torch.float32)
        require_contiguous("bias", bias)
        named["bias"] = bias
    require_same_device(**named)


def launch(
    x: tuple[torch.Tensor, torch.Tensor | None],
    weight: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    tile: Tile,
    *,
    bias: torch.Tensor | None = None,
    workspace: SplitWorkspace | None = None,
) -> None:
    """Run one kernel on operands with their scales, without checks of these.

    x: quantised, or bf16 without scales where the tile is for few rows on a Hopper.
    out: (M, N), bf16, rows may lie apart.

    Raises:
        KernelArgumentError: too small a workspace.
    """
    import triton

    rows, columns = out.shape
    k = weight[0].shape[1]
    row_tiles, column_tiles = triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns)
    partials, arrivals = _shared_memory_of_programs(out, tile, row_tiles * column_tiles, workspace)
    constants: dict[str, Any] = {"WHOLE": k % tile.depth == 0, "HAS_BIAS": bias is not None}
    x_scales = x[0] if x[1] is None else x[1]
    if tile.kind != "scaled":
        constants["SCALES"] = scale_reads(weight[1], *(x[1:] if x[1] is not None else ()))
    if tile.kind == "few":
        constants["FUSED"] = x[1] is None
    _kernel_of(tile)[(row_tiles * column_tiles, tile.split)](
        x[0],
        x_scales,
        *weight,
        out if bias is None else bias,
        out,
        partials,
        arrivals,
        rows,
        columns,
        k,
        x[0].stride(0),
        x_scales.stride(0),
        weight[0].stride(0),
        weight[1].stride(0),
        out.stride(0),
        BM=tile.rows,
        BN=tile.columns,
        BK=tile.depth,
        SPLIT=tile.split,
        STAGES=tile.stages,
        INTERPRETED=target_of(out).interpreted,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
        **constants,
    )


def scale_reads(*scales: torch.Tensor) -> int:
    """How a Hopper kernel reads these scales (see ``group_scales``); no bit depends on it."""
    ways = [_scale_read(one) for one in scales]
    return 0 if 0 in ways else max(ways)


def _scale_read(scales: torch.Tensor) -> int:
    if scales.data_ptr() % 4:
        return 0
    if scales.shape[1] % 4 == 0 and scales.stride(0) % 4 == 0:
        return 1
    return 2 if scales.is_contiguous() and scales.numel() % 4 == 0 else 0


def _kernel_of(tile: Tile) -> Any:
    from sparkserve_kernels.mxfp8_linear import kernel, kernel_hopper

    return {
        "scaled": kernel.mxfp8_linear_kernel,
        "few": kernel_hopper.few_rows_kernel,
        "many": kernel_hopper.many_rows_kernel,
    }[tile.kind]


def _shared_memory_of_programs(
    out: torch.Tensor, tile: Tile, tiles: int, workspace: SplitWorkspace | None
) -> tuple[torch.Tensor, torch.Tensor]:
    from sparkserve_kernels.split_k import SplitWorkspace

    if tile.split == 1:
        return out, out
    cells = tiles * tile.split * tile.rows * tile.columns
    chosen = workspace or SplitWorkspace.on(out.device, cells=cells, tiles=tiles)
    chosen.require(cells=cells, tiles=tiles, device=out.device)
    return chosen.partials, chosen.arrivals
