"""Public functions of the KV records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from sparkserve_kernels.index_quant.api import write_records
from sparkserve_kernels.kv_records import kernel
from sparkserve_kernels.kv_records.layouts import PageLayout, page_layout, require_pair
from sparkserve_kernels.kv_records.reference import FP8_GROUPS, Latents
from sparkserve_kernels.kv_records.tiles import WARPS

__all__ = [
    "Cache",
    "Latents",
    "is_supported",
    "kv_pack",
    "kv_unpack",
    "kv_unpack_dual",
    "page_layout",
    "require_pair",
]


@dataclass(frozen=True)
class Cache:
    """Pages of one record: a main or a compressed cache, or the part of a layer in it."""

    pages: torch.Tensor
    """(pages, >= layout.page_bytes), uint8; pages lie stride(0) bytes apart, whatever the width."""
    layout: PageLayout

    @property
    def total_slots(self) -> int:
        """Slot ids are 0 up to this: page id // slots, slot id % slots."""
        return len(self.pages) * self.layout.slots

    @property
    def geometry(self) -> tuple[int, ...]:
        """Page stride, slots a page, all slots, data stride, base and stride of the scales."""
        layout, record = self.layout, self.layout.record
        scales = (layout.scale_base, layout.scale_stride)
        if record.scale_bytes == 0:  # the scales of "432" lie inside its data row
            scales = (256, record.data_bytes)
        stride = self.pages.stride(0)
        return (stride, layout.slots, self.total_slots, layout.data_stride, *scales)


def is_supported(pages: torch.Tensor) -> bool:
    """Whether the kernels run on this tensor's device."""
    return target.supports(pages)


def kv_pack(x: torch.Tensor, slots: torch.Tensor, cache: Cache) -> None:
    """Write tokens into their slots, as records of the cache's own layout.

    x: (T, 512) latents, the last 64 values with RoPE applied, or (T, 128) index keys for
    "index68" (its packer's stage alone; ``index_quant_to_pages`` does both); bf16, rows may lie
    apart. slots: (T,), int32 or int64.

    Exact: equal byte for byte to ``reference.kv_pack`` for finite values; only the record's bytes
    are touched.

    Notes:
        An id outside the cache, such as -1, writes nothing. Of two tokens with one id any bytes of
        either may win.

    Raises:
        KernelArgumentError: shape, dtype, stride, alignment or device.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.
    """
    _require_cache(cache)
    require_shape("x", x, (None, cache.layout.record.width))
    require_dtype("x", x, torch.bfloat16)
    require_contiguous_rows("x", x)
    require_shape("slots", slots, (len(x),))
    _require_slots(slots)
    require_same_device(x=x, slots=slots, pages=cache.pages)
    if not len(x) or not cache.total_slots:
        return
    name = cache.layout.record.name
    if name == "index68":
        write_records(x, slots, cache.pages, cache.layout.slots, two_stages=False)
        return
    arguments = (x, slots, cache.pages, x.stride(0), *cache.geometry)
    interpreted = target.target_of(x).interpreted
    options: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": False}
    if name in FP8_GROUPS:
        kernel.pack_fp8_kernel[(len(x),)](
            *arguments,
            GROUP=FP8_GROUPS[name],
            HAS_ROPE=name == "584",
            INTERPRETED=interpreted,
            **options,
        )
    else:
        kernel.pack_fp4_kernel[(len(x),)](*arguments, HAS_ROPE=name == "432", **options)


def kv_unpack(slots: torch.Tensor, cache: Cache) -> Latents:
    """Read tokens back from their slots.

    slots: (...,), int32 or int64, one or two axes. Gives key and value (..., 512), bf16, or
    (..., 128) for "index68"; they are one tensor except for "432", whose key takes its RoPE part
    from bf16 and whose value does not.

    Exact: equal bit for bit to ``reference.kv_unpack``.

    Notes:
        An id outside the cache, such as -1, gives zeros.

    Raises:
        KernelArgumentError: shape, dtype, stride, alignment or device.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.
    """
    _require_cache(cache)
    if slots.ndim not in (1, 2):
        raise KernelArgumentError(f"slots: {slots.ndim} axes, expected 1 or 2")
    _require_slots(slots)
    require_same_device(slots=slots, pages=cache.pages)
    out = _empty((*slots.shape, cache.layout.record.width), cache)
    _unpack_into(slots, cache, out)
    return out


def kv_unpack_dual(
    main_slots: torch.Tensor, main: Cache, extra_slots: torch.Tensor, extra: Cache
) -> Latents:
    """Read every row's tokens of the main cache, then of the compressed one, each its own way.

    main_slots: (T, A), extra_slots: (T, B), int32 or int64; ids count in each cache's own slots.
    Gives key and value (T, A + B, 512), bf16. Record, page size and page stride of each cache are
    its own; see ``layouts.require_pair`` for what goes together.

    Notes:
        As ``kv_unpack``: exact, and zeros for ids outside a cache.

    Raises:
        KernelArgumentError: as ``kv_unpack``, or records that are no pair.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.
    """
    require_pair(main.layout, extra.layout)
    require_shape("main_slots", main_slots, (None, None))
    require_shape("extra_slots", extra_slots, (len(main_slots), None))
    for cache, slots in ((main, main_slots), (extra, extra_slots)):
        _require_cache(cache)
        _require_slots(slots)
    require_same_device(
        main=main.pages, extra=extra.pages, main_slots=main_slots, extra_slots=extra_slots
    )
    rows, split = main_slots.shape
    width = main.layout.record.width
    both = _empty((rows, split + extra_slots.shape[1], width), main)
    _unpack_into(main_slots, main, Latents(both.key[:, :split], both.value[:, :split]))
    _unpack_into(extra_slots, extra, Latents(both.key[:, split:], both.value[:, split:]))
    return both


def _empty(shape: tuple[int, ...], cache: Cache) -> Latents:
    key = torch.empty(shape, dtype=torch.bfloat16, device=cache.pages.device)
    return Latents(key, torch.empty_like(key) if cache.layout.record.name == "432" else key)


def _unpack_into(slots: torch.Tensor, cache: Cache, out: Latents) -> None:
    if not slots.numel():
        return
    if not cache.total_slots:
        for latents in out:
            latents.zero_()
        return
    target.target_of(cache.pages)
    name = cache.layout.record.name
    per_row = slots.shape[-1] if slots.ndim == 2 else 1
    place = (per_row, out.key.stride(0), *cache.geometry)
    options: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": False}
    if name in FP8_GROUPS:
        kernel.unpack_fp8_kernel[(slots.numel(),)](
            slots,
            cache.pages,
            out.key,
            *place,
            GROUP=FP8_GROUPS[name],
            HAS_ROPE=name == "584",
            **options,
        )
        return
    kernel.unpack_fp4_kernel[(slots.numel(),)](
        slots,
        cache.pages,
        *out,
        *place,
        WIDTH=cache.layout.record.width,
        GROUP=32 if name == "index68" else 16,
        HAS_ROPE=name == "432",
        E8M0=name == "index68",
        **options,
    )


def _require_cache(cache: Cache) -> None:
    pages, layout = cache.pages, cache.layout
    require_shape("pages", pages, (None, None))
    require_dtype("pages", pages, torch.uint8)
    require_contiguous_rows("pages", pages)
    if pages.shape[1] < layout.page_bytes:
        raise KernelArgumentError(
            f"pages: {pages.shape[1]} bytes for {layout.slots} slots of record "
            f"{layout.record.name}, expected at least {layout.page_bytes}"
        )
    if layout.record.name in ("584", "432") and (pages.data_ptr() | pages.stride(0)) % 2:
        raise KernelArgumentError(
            f"pages at {pages.data_ptr():#x}, {pages.stride(0)} bytes apart, expected both even: "
            f"record {layout.record.name} holds bf16"
        )


def _require_slots(slots: torch.Tensor) -> None:
    require_dtype("slots", slots, torch.int32, torch.int64)
    require_contiguous("slots", slots)
