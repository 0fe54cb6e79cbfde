"""Public functions of the index quantiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkserve_kernels import target
from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.index_quant import kernel
from sparkserve_kernels.index_quant.reference import (
    GROUP,
    PAYLOAD_BYTES,
    RECORD_BYTES,
    SCALE_BYTES,
    WIDTH,
)
from sparkserve_kernels.index_quant.tiles import MANY, Tile, tile_for

_MOST_ROWS = (2**31 - MANY.block) // SCALE_BYTES


@dataclass(frozen=True)
class Pages:
    """Where records go."""

    slots: torch.Tensor
    stride: int
    page_slots: int
    total_slots: int


def is_supported(x: torch.Tensor) -> bool:
    """Whether the kernel runs on this tensor's device."""
    return target.supports(x)


def index_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise index queries or keys by the two-stage rule (docs/format/numbers.md).

    x: (..., 128), bf16 after RoPE, with one or two leading axes (T, or T and 32 heads); rows may
    lie apart. Gives payload (..., 64) uint8, two e2m1 codes a byte with element 2i in the low
    nibble, and scales (..., 4) uint8 (e8m0 within 114..254), both contiguous and new.

    Exact: equal bit for bit to ``reference.index_quant``; a row's bits depend on it alone.

    Notes:
        Values must be finite and below 1.75 * 2^127: above that the first stage overflows. The
        sign of zero stays (code 8). An empty input gives empty results.

    Raises:
        KernelArgumentError: shape, dtype or stride.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.
    """
    _require_rows(x)
    shape = x.shape[:-1]
    payload = torch.empty((*shape, PAYLOAD_BYTES), dtype=torch.uint8, device=x.device)
    scales = torch.empty((*shape, SCALE_BYTES), dtype=torch.uint8, device=x.device)
    if x.numel():
        launch(x, payload, scales, tile_for(scales.numel()))
    return payload, scales


def index_quant_to_pages(
    x: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor, page_slots: int
) -> None:
    """Quantise index keys by the two-stage rule straight into their 68-byte records.

    x: (T, 128), bf16 after RoPE; slots: (T,), int32 or int64, the slot id of every key; pages:
    (pages, >= 68 * page_slots), uint8, rows any distance apart (a layer's part of a page too).
    See ``reference`` for the record.

    Notes:
        An id outside [0, pages * page_slots), such as -1, writes nothing. Of two keys with one id
        either may win. Values as for ``index_quant``.

    Raises:
        KernelArgumentError: shape, dtype, stride or device.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.
    """
    write_records(x, slots, pages, page_slots, two_stages=True)


def write_records(
    x: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor, page_slots: int, *, two_stages: bool
) -> None:
    """The same with the packer's stage alone where two_stages is off."""
    _require_rows(x)
    require_shape("slots", slots, (x.shape[0],))
    require_dtype("slots", slots, torch.int32, torch.int64)
    require_contiguous("slots", slots)
    require_shape("pages", pages, (None, None))
    require_dtype("pages", pages, torch.uint8)
    require_contiguous_rows("pages", pages)
    require_same_device(x=x, slots=slots, pages=pages)
    if page_slots < 1 or pages.shape[1] < page_slots * RECORD_BYTES:
        raise KernelArgumentError(
            f"pages: {pages.shape[1]} bytes for {page_slots} slots, expected at least "
            f"{page_slots * RECORD_BYTES}"
        )
    if x.numel() and len(pages):
        where = Pages(slots, pages.stride(0), page_slots, len(pages) * page_slots)
        scales = pages[:, page_slots * PAYLOAD_BYTES :]
        tile = tile_for(len(x) * SCALE_BYTES)
        launch(x, pages, scales, tile, where, two_stages=two_stages)


def _require_rows(x: torch.Tensor) -> None:
    if x.ndim not in (2, 3):
        raise KernelArgumentError(f"x: {x.ndim} axes, expected 2 or 3")
    require_shape("x", x, (*(None,) * (x.ndim - 1), WIDTH))
    require_dtype("x", x, torch.bfloat16)
    require_contiguous_rows("x", x)
    if x.numel() // WIDTH > _MOST_ROWS:
        raise KernelArgumentError(f"x has {x.numel() // WIDTH} rows, expected at most {_MOST_ROWS}")


def launch(
    x: torch.Tensor,
    payload: torch.Tensor,
    scales: torch.Tensor,
    tile: Tile,
    pages: Pages | None = None,
    *,
    two_stages: bool = True,
) -> None:
    """Quantise x into payload and scales, or into pages where these say where."""
    target.target_of(x)
    heads = x.shape[1] if x.ndim == 3 else 1
    rows = x.numel() // WIDTH
    groups = rows * (WIDTH // GROUP)
    kernel.index_quant_kernel[(-(-groups // tile.block),)](
        x,
        x if pages is None else pages.slots,
        payload,
        scales,
        rows,
        heads,
        x.stride(0),
        x.stride(1) if x.ndim == 3 else 0,
        0 if pages is None else pages.stride,
        1 if pages is None else pages.page_slots,
        0 if pages is None else pages.total_slots,
        PAGED=pages is not None,
        TWO_STAGES=two_stages,
        BLOCK=tile.block,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
