"""KV records: one token per program, packed into its slot or read back.

A token is 1 KiB of bf16; its record's bytes are written once. Moves 1,024 + record bytes a token.
Every address is counted in 64 bits: pools pass 2^31 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import (
    e2m1_code_scaled,
    e2m1_pack,
    e2m1_unpack,
    e2m1_value,
    e4m3_bits,
    e4m3_bits_on,
    e4m3_value,
    e8m0_value,
    to_bf16,
    to_fp32,
)

NOPE = tl.constexpr(448)
ROPE = tl.constexpr(64)


@triton.jit
def as_bf16_pointer(pointer):
    """The address of a byte as that of bf16 values."""
    return pointer.to(tl.pointer_type(tl.bfloat16))


@triton.jit
def pack_fp8_kernel(
    x_ptr,
    slots_ptr,
    pages_ptr,
    x_stride,
    page_stride,
    page_slots,
    total_slots,
    data_stride,
    scale_base,
    scale_stride,
    GROUP: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Records "584" (GROUP 64, RoPE part as bf16 after 448 codes) and "528" (GROUP 32)."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if (slot >= 0) & (slot < total_slots):
        page = pages_ptr + slot // page_slots * page_stride
        inside = slot % page_slots
        data = page + inside * data_stride
        scales = page + scale_base + inside * scale_stride
        group = tl.arange(0, 512 // GROUP)
        at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = to_fp32(tl.load(x_ptr + row * x_stride + at))
        amax = tl.max(tl.abs(x), axis=1)
        bits = amax.to(tl.uint32, bitcast=True)
        # 448 is 1.75 * 2^8: a mantissa above 1.75 needs the next power of two.
        byte = (bits >> 23).to(tl.int32) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)
        byte = tl.where(amax == 0.0, 127, tl.maximum(byte, 0))
        multiplier = ((254 - byte) << 23).to(tl.uint32).to(tl.float32, bitcast=True)
        codes = e4m3_bits_on(x * multiplier[:, None], INTERPRETED)
        if HAS_ROPE:
            tl.store(data + at, codes, mask=at < NOPE)
            byte = tl.where(group < NOPE // GROUP, byte, 0)
            lane = tl.arange(0, ROPE)
            rope = tl.load(x_ptr + row * x_stride + NOPE + lane)
            tl.store(as_bf16_pointer(data + NOPE) + lane, rope)
        else:
            tl.store(data + at, codes)
        tl.store(scales + group, byte.to(tl.uint8))


@triton.jit
def pack_fp4_kernel(
    x_ptr,
    slots_ptr,
    pages_ptr,
    x_stride,
    page_stride,
    page_slots,
    total_slots,
    data_stride,
    scale_base,
    scale_stride,
    HAS_ROPE: tl.constexpr,
):
    """Records "432" (16 zero bytes and 64 bf16 after the scales) and "288"."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if (slot >= 0) & (slot < total_slots):
        page = pages_ptr + slot // page_slots * page_stride
        inside = slot % page_slots
        data = page + inside * data_stride
        scales = page + scale_base + inside * scale_stride
        group = tl.arange(0, 32)
        lane = tl.arange(0, 16)
        x = to_fp32(tl.load(x_ptr + row * x_stride + group[:, None] * 16 + lane[None, :]))
        sixth = tl.max(tl.abs(x), axis=1) * 0.16666667163372040
        byte = e4m3_bits(tl.maximum(sixth, 0.001953125))
        codes = e2m1_code_scaled(x, e4m3_value(byte)[:, None])
        half = tl.arange(0, 8)
        tl.store(data + group[:, None] * 8 + half[None, :], e2m1_pack(codes, 32, 16))
        tl.store(scales + group, byte)
        if HAS_ROPE:
            tl.store(data + 288 + lane, tl.zeros((16,), tl.uint8))
            place = tl.arange(0, ROPE)
            rope = tl.load(x_ptr + row * x_stride + NOPE + place)
            tl.store(as_bf16_pointer(data + 304) + place, rope)


@triton.jit
def unpack_fp8_kernel(
    slots_ptr,
    pages_ptr,
    key_ptr,
    per_row,
    row_stride,
    page_stride,
    page_slots,
    total_slots,
    data_stride,
    scale_base,
    scale_stride,
    GROUP: tl.constexpr,
    HAS_ROPE: tl.constexpr,
):
    """The latents of records "584" and "528"; zeros for an id outside the pool.

    Token n goes to key_ptr + n // per_row * row_stride + n % per_row * 512.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    known = (slot >= 0) & (slot < total_slots)
    slot = tl.where(known, slot, 0)
    page = pages_ptr + slot // page_slots * page_stride
    inside = slot % page_slots
    data = page + inside * data_stride
    scales = page + scale_base + inside * scale_stride
    out = key_ptr + row // per_row * row_stride + row % per_row * 512
    group = tl.arange(0, 512 // GROUP)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    scale = e8m0_value(tl.load(scales + group, mask=known, other=0))
    if HAS_ROPE:
        code = tl.load(data + at, mask=known & (at < NOPE), other=0)
        tl.store(out + at, to_bf16(e4m3_value(code) * scale[:, None]), mask=at < NOPE)
        lane = tl.arange(0, ROPE)
        rope = tl.load(as_bf16_pointer(data + NOPE) + lane, mask=known, other=0.0)
        tl.store(out + NOPE + lane, rope)
    else:
        code = tl.load(data + at, mask=known, other=0)
        tl.store(out + at, to_bf16(e4m3_value(code) * scale[:, None]))


@triton.jit
def unpack_fp4_kernel(
    slots_ptr,
    pages_ptr,
    key_ptr,
    value_ptr,
    per_row,
    row_stride,
    page_stride,
    page_slots,
    total_slots,
    data_stride,
    scale_base,
    scale_stride,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    E8M0: tl.constexpr,
):
    """The latents of records "432" and "288", and index keys; zeros for an id outside the pool.

    With HAS_ROPE the key takes its last 64 values from the record's bf16 part; without it
    value_ptr is not used.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    known = (slot >= 0) & (slot < total_slots)
    slot = tl.where(known, slot, 0)
    page = pages_ptr + slot // page_slots * page_stride
    inside = slot % page_slots
    data = page + inside * data_stride
    scales = page + scale_base + inside * scale_stride
    out = row // per_row * row_stride + row % per_row * WIDTH
    group = tl.arange(0, WIDTH // GROUP)
    half = tl.arange(0, GROUP // 2)
    packed = tl.load(data + group[:, None] * (GROUP // 2) + half[None, :], mask=known, other=0)
    byte = tl.load(scales + group, mask=known, other=0)
    scale = e8m0_value(byte) if E8M0 else e4m3_value(byte)
    codes = e2m1_unpack(packed, WIDTH // GROUP, GROUP // 2)
    values = to_bf16(e2m1_value(codes) * scale[:, None])
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    if HAS_ROPE:
        tl.store(value_ptr + out + at, values)
        tl.store(key_ptr + out + at, values, mask=at < NOPE)
        lane = tl.arange(0, ROPE)
        rope = tl.load(as_bf16_pointer(data + 304) + lane, mask=known, other=0.0)
        tl.store(key_ptr + out + NOPE + lane, rope)
    else:
        tl.store(key_ptr + out + at, values)
