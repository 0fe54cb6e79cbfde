"""Public functions of linears by an fp8 twin."""

from __future__ import annotations

from typing import Any

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    at_most,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.numerics.scales import swizzled_bytes
from sparkserve_kernels.split_k import SplitWorkspace
from sparkserve_kernels.target import supports, target_of
from sparkserve_kernels.twin_linear.tiles import Tile, in_words, tile_for
from sparkserve_kernels.twin_linear.twin import (
    GROUP,
    Twin,
    drop_weight,
    read_through,
    restore_weight,
    twin_of,
)

__all__ = [
    "Twin",
    "drop_weight",
    "is_supported",
    "read_through",
    "restore_weight",
    "twin_linear",
    "twin_linear_mxfp8",
    "twin_of",
]


def is_supported(x: torch.Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return supports(x)


def twin_linear(
    x: torch.Tensor,
    twin: Twin,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    rows_hint: int | None = None,
    workspace: SplitWorkspace | None = None,
) -> torch.Tensor:
    """Multiply bf16 rows by the transpose of a twin, with fp32 sums.

    x: (M, K) with a twin of one group, or (M, groups, K); bf16, gaps between rows and groups
        allowed.
    twin: of (groups, N, K); see ``twin_of``.
    out_dtype: bf16, or fp32 as the draft's logits are.
    rows_hint: rows by which the launch shape is chosen, where a caller shares the rows out.
    workspace: of the caller's stream, for calls that split K; None allocates and clears one.

    Returns:
        (M, N) or (M, groups, N) of out_dtype, contiguous and new. Runs repeat bit for bit; a
        row's bits depend on that row and on the bucket of rows_hint (or M), and for weights that
        are not split (the draft's head) on that row alone. Equal to the same tiles on the bf16
        weight; on sm_90 where no element of x lies below 2^-29 of the largest of its 32 columns
        (what is lost below that stays under 2^-38 of it).

    Raises:
        KernelArgumentError: a wrong shape, dtype, layout or device, more rows than rows_hint, or
            too small a workspace.
        UnsupportedDevice: no kernel for where x lies.

    Notes:
        The twin: docs/format/numbers.md, "Fp8 twins". M or N of 0 give an empty result.
    """
    require_dtype(
        "out_dtype's tensor", torch.empty(0, dtype=out_dtype), torch.bfloat16, torch.float32
    )
    rows = _rows(x, twin)
    groups, columns, _ = twin.shape
    tile = _tile(rows, twin, rows_hint)
    out = torch.empty((len(rows), groups, columns), dtype=out_dtype, device=x.device)
    if out.numel():
        launch(rows, (twin.q, twin.exponents), (out, None), tile, workspace=workspace)
    return out if x.dim() == 3 else out.squeeze(1)


def twin_linear_mxfp8(
    x: torch.Tensor,
    twin: Twin,
    *,
    rows_hint: int | None = None,
    workspace: SplitWorkspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same product, rounded to bf16 and quantised into the next layer's input (wo_b's).

    x, twin, rows_hint, workspace: as in ``twin_linear``; N a multiple of 32.

    Returns:
        q (M, groups*N) float8_e4m3fn, and its scales in the 128x4 layout, uint8, whose padding
        rows hold 0 (``numerics.scales.swizzle``): those of ``mxfp8_quant`` on ``twin_linear``.

    Raises:
        KernelArgumentError, UnsupportedDevice: as ``twin_linear``.
    """
    rows = _rows(x, twin)
    groups, columns, _ = twin.shape
    if columns % GROUP:
        raise KernelArgumentError(f"N = {columns}, expected a multiple of {GROUP}")
    tile = _tile(rows, twin, rows_hint)
    wide = groups * columns
    q = torch.empty((len(rows), wide), dtype=torch.float8_e4m3fn, device=x.device)
    size = swizzled_bytes(len(rows), wide // GROUP)
    # Groups that only pad the layout are nobody's to write.
    make = torch.zeros if wide // GROUP % 4 else torch.empty
    scales = make(size, dtype=torch.uint8, device=x.device)
    if q.numel():
        launch(rows, (twin.q, twin.exponents), (q, scales), tile, workspace=workspace)
    return q, scales


def _rows(x: torch.Tensor, twin: Twin) -> torch.Tensor:
    twin.check()
    groups, _, k = twin.shape
    require_dtype("x", x, torch.bfloat16)
    if x.dim() == 2 and groups == 1:
        require_shape("x", x, (None, k))
        rows = x.unsqueeze(1)
    else:
        require_shape("x", x, (None, groups, k))
        rows = x
    require_contiguous_rows("x", rows)
    require_same_device(x=x, twin=twin.q)
    return rows


def _tile(rows: torch.Tensor, twin: Twin, rows_hint: int | None) -> Tile:
    hint = at_most("x", len(rows), "rows_hint", rows_hint)
    return tile_for(target_of(rows).family, hint, twin.shape)


def launch(
    x: torch.Tensor,
    weight: tuple[torch.Tensor, torch.Tensor],
    out: tuple[torch.Tensor, torch.Tensor | None],
    tile: Tile,
    *,
    workspace: SplitWorkspace | None = None,
) -> None:
    """Run one kernel without checks of its operands.

    x: (M, groups, K). weight: a twin's two parts, or, to compare with, a bf16 weight (groups, N, K)
    and exponents that are all 127. out: bf16 or fp32 and None, or MXFP8 and its 128x4 scales.

    Raises:
        KernelArgumentError: too small a workspace.
    """
    w, exponents = weight
    groups, columns, k = w.shape
    row_tiles, column_tiles = -(-len(x) // tile.rows), -(-columns // tile.columns)
    tiles = row_tiles * column_tiles
    cells = tiles * groups * tile.split * tile.rows * tile.columns
    partials = arrivals = out[0]
    if tile.split > 1:
        if workspace is None:
            workspace = SplitWorkspace.on(x.device, cells=cells, tiles=tiles * groups)
        workspace.require(cells=cells, tiles=tiles * groups, device=x.device)
        partials, arrivals = workspace.partials, workspace.arrivals
    _kernel_of(tile)[(tiles, tile.split, groups)](
        x,
        w,
        exponents,
        out[0],
        out[0] if out[1] is None else out[1],
        partials,
        arrivals,
        len(x),
        columns,
        k,
        groups,
        x.stride(0),
        x.stride(1),
        **constants(tile, k, weight, out),
        INTERPRETED=target_of(x).interpreted,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )


def constants(
    tile: Tile,
    k: int,
    weight: tuple[torch.Tensor, torch.Tensor],
    out: tuple[torch.Tensor, torch.Tensor | None],
) -> dict[str, Any]:
    """The constexprs of a launch, but for INTERPRETED."""
    w, exponents = weight
    twin = w.dtype == torch.float8_e4m3fn
    epilogue = 2 if out[1] is not None else int(out[0].dtype == torch.float32)
    return {
        "BM": tile.rows,
        "BN": tile.columns,
        "BK": tile.depth,
        "SPLIT": tile.split,
        "STAGES": tile.stages,
        "BLOCK_ROWS": w.shape[1] // exponents.shape[1],
        "TWIN": twin,
        "WHOLE": k % tile.depth == 0,
        # The bf16 form must see single bytes: see ``kernel.scaled``.
        "WORDS": twin and in_words(tile, k) and exponents.data_ptr() % 4 == 0,
        "EPILOGUE": epilogue,
    }


def _kernel_of(tile: Tile) -> Any:
    from sparkserve_kernels.twin_linear import kernel

    return {"wide": kernel.wide_kernel, "grouped": kernel.grouped_kernel}[tile.kind]
