"""Rows of an Engram table by id, decoded to bf16."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.engram_gather.table import VALUES, GatherOptions, RowTable
from sparkserve_kernels.engram_gather.tiles import FEW_IDS, Tile, tile_for
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["GatherOptions", "RowTable", "engram_gather", "is_supported", "launch"]

DEFAULT = GatherOptions()


def is_supported(ids: torch.Tensor) -> bool:
    """Whether the kernel runs where these ids lie."""
    return supports(ids)


def engram_gather(
    ids: torch.Tensor,
    table: RowTable,
    owned: tuple[int, int] | None = None,
    *,
    out: torch.Tensor | None = None,
    options: GatherOptions = DEFAULT,
) -> torch.Tensor:
    """Decode the rows of some ids; bit-equal to fp32(e4m3) * 2^(scale - 127) rounded once to bf16.

    ids: [...] int64, contiguous; any shape, may be empty, may repeat.
    table: its row 0 is the row of id ``owned[0]``.
    owned: ids ``first <= id < end`` lie in the table, all others give rows of +0; None for ids
        0 up to the table's length.
    out: [..., 256] bf16, contiguous; None for a new tensor.

    Returns:
        [..., 256] bf16. A row depends on its id alone: no order, number or option but ``zero``
        changes a bit. NaN codes and the scale byte 255 give NaN of any payload.

    Raises:
        KernelArgumentError: a wrong shape or dtype, or more owned ids than the table has rows.
        UnsupportedDevice: no kernel for where the ids lie.

    Notes:
        The bytes of a row: docs/format/numbers.md. ``sorted`` costs a sort of the ids before.
    """
    import torch

    first, end = check_owned(table, owned)
    require_dtype("ids", ids, torch.int64)
    require_contiguous("ids", ids)
    if out is None:
        out = torch.empty((*ids.shape, VALUES), dtype=torch.bfloat16, device=ids.device)
    require_shape("out", out, (*ids.shape, VALUES))
    require_dtype("out", out, torch.bfloat16)
    require_contiguous("out", out)
    require_same_device(ids=ids, out=out)
    if ids.numel() == 0:
        return out
    if first == end:
        return out.zero_()
    tile = tile_for(target_of(ids).family, ids.numel())
    if ids.numel() <= FEW_IDS:
        options = replace(options, visit="given")
    return launch(ids, table, (first, end), out, tile=tile, options=options)


def check_owned(table: RowTable, owned: tuple[int, int] | None) -> tuple[int, int]:
    """The owned range of ids.

    Raises:
        KernelArgumentError: it is reversed, or longer than the table.
    """
    first, end = (0, table.rows) if owned is None else owned
    if not 0 <= end - first <= table.rows:
        raise KernelArgumentError(
            f"owned ids {first} to {end}, expected from 0 to {table.rows} of them: the table has "
            f"{table.rows} rows"
        )
    return first, end


def launch(
    ids: torch.Tensor,
    table: RowTable,
    owned: tuple[int, int],
    out: torch.Tensor,
    *,
    tile: Tile,
    options: GatherOptions = DEFAULT,
) -> torch.Tensor:
    """Run the kernel in one tile, without checks."""
    import triton

    from sparkserve_kernels.engram_gather.kernel import gather_kernel

    flat, places = ids.view(-1), ids
    if options.visit == "sorted":
        flat, places = flat.sort()
    gather_kernel[(triton.cdiv(flat.numel(), tile.rows),)](
        flat,
        places,
        table.values_address,
        table.scales_address,
        out,
        flat.numel(),
        *owned,
        VALUE_STRIDE=table.value_stride_bytes,
        SCALE_STRIDE=table.scale_stride_bytes,
        ROWS=tile.rows,
        SORTED=options.visit == "sorted",
        POSITIVE_ZERO=options.zero == "positive",
        INTERPRETED=target_of(ids).interpreted,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
    return out
