"""Index queries and keys to FP4: both stages in registers, one read and one write.

The first stage leaves codes of {0, .5, 1, 1.5, 2, 3, 4, 6} times a power of two, so that the
second one only moves codes along by powers of two: it is a table of eight codes per power, one
32-bit word. Moves 2 bytes a value in and 17/32 out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import e2m1_code, e2m1_pack, to_fp32

FLOOR_BYTE = tl.constexpr(114)
"""e8m0 of 2^-13, the ceiling power of two of the packer's 1e-4."""


@triton.jit
def sixth_byte(amax):
    """e8m0 byte (int32) of the least power of two not below amax/6, for a normal fp32 amax."""
    bits = amax.to(tl.uint32, bitcast=True)
    # 6 is 1.5 * 2^2: a mantissa above 1.5 needs the next power of two.
    return (bits >> 23).to(tl.int32) - 2 + ((bits & 0x7FFFFF) > 0x400000).to(tl.int32)


@triton.jit
def power_of_two(exponent):
    """fp32 2^exponent of an int32 within -126..127."""
    return ((exponent + 127) << 23).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def moved_codes(shift):
    """The codes of (value of code i) * 2^shift rounded to e2m1, four bits each.

    shift: int32; 1 is only right where no code is above 5.
    """
    table = tl.where(shift == 0, 0x76543210, 0x77765420)
    table = tl.where(shift == -1, 0x54322100, table)
    table = tl.where(shift == -2, 0x32211000, table)
    table = tl.where(shift == -3, 0x21100000, table)
    table = tl.where(shift == -4, 0x10000000, table)
    return tl.where(shift < -4, 0, table).to(tl.uint32)


@triton.jit
def quantise(x, TWO_STAGES: tl.constexpr):
    """Groups [N, 32] fp32 (of bf16 values) to codes (uint8) and e8m0 bytes [N] (int32)."""
    amax = tl.max(tl.abs(x), axis=1)
    if not TWO_STAGES:
        packer = tl.maximum(sixth_byte(tl.maximum(amax, 1e-30)), FLOOR_BYTE)
        return e2m1_code(x * tl.expand_dims(power_of_two(127 - packer), 1)), packer
    first = sixth_byte(tl.maximum(amax, 7.052966104933725e-38))  # 6 * 2^-126
    inverse = power_of_two(127 - first)
    code = e2m1_code(x * tl.expand_dims(inverse, 1))
    # A largest value that became 3 fills half the range only: the packer takes half the scale.
    half = (amax * inverse < 3.5).to(tl.int32)
    byte = tl.maximum(first - half, FLOOR_BYTE)
    table = tl.expand_dims(moved_codes(first - byte), 1)
    moved = (table >> ((code & 7).to(tl.uint32) * 4)) & 7
    return (moved.to(tl.uint8) | (code & 8)), byte


@triton.jit
def index_quant_kernel(
    x_ptr,
    slots_ptr,
    payload_ptr,
    scales_ptr,
    rows,
    heads,
    row_stride,
    head_stride,
    page_stride,
    page_slots,
    total_slots,
    PAGED: tl.constexpr,
    TWO_STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """From x [rows/heads, heads, 128] to payload and scales, contiguous or records in pages.

    rows counts (row, head) pairs. Paged: payload_ptr is the first page and scales_ptr the scales
    of its slot 0; ids outside [0, total_slots) write nothing.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = at // 4
    group = at % 4
    real = row < rows
    lane = tl.arange(0, 32)
    place = (row // heads).to(tl.int64) * row_stride + (row % heads).to(tl.int64) * head_stride
    source = x_ptr + (place + group * 32)[:, None] + lane[None, :]
    x = to_fp32(tl.load(source, mask=real[:, None], other=0.0))
    code, byte = quantise(x, TWO_STAGES)
    payload_at = row.to(tl.int64) * 64
    scales_at = row.to(tl.int64) * 4
    if PAGED:
        slot = tl.load(slots_ptr + row, mask=real, other=-1).to(tl.int64)
        real = (slot >= 0) & (slot < total_slots)
        page = slot // page_slots * page_stride
        inside = slot % page_slots
        payload_at = page + inside * 64
        scales_at = page + inside * 4
    target = payload_ptr + (payload_at + group * 16)[:, None] + tl.arange(0, 16)[None, :]
    tl.store(target, e2m1_pack(code, BLOCK, 32), mask=real[:, None])
    tl.store(scales_ptr + scales_at + group, byte.to(tl.uint8), mask=real)
