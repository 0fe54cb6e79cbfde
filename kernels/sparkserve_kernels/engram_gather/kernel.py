"""Gather rows of 256 e4m3 values with 8 e8m0 scales and decode them to bf16.

Each value is fp32(e4m3) * 2^(scale - 127), rounded once. Per id it
reads 8 + 256 + 8 bytes and writes 512. A tile is a list of 32-value groups, so that a scale is one
load for a group and never a shuffle; 8 values per thread are 8 bytes read and 16 bytes written, the
one split at which both accesses are whole vectors without going through shared memory, and all
that the 8-byte alignment of packed records allows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import e4m3_value, e8m0_value, to_bf16


@triton.jit(
    do_not_specialize=["values_address", "scales_address", "count", "row_lo", "row_hi"],
)
def gather_kernel(
    ids,
    places,
    values_address: tl.int64,
    scales_address: tl.int64,
    out,
    count: tl.int32,
    row_lo: tl.int64,
    row_hi: tl.int64,
    VALUE_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    SORTED: tl.constexpr,
    POSITIVE_ZERO: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program decodes ROWS ids; ``places`` says where each goes if the ids are SORTED."""
    group = tl.arange(0, ROWS * 8)
    part = group % 8
    at = tl.program_id(0).to(tl.int64) * ROWS + group // 8
    real = at < count
    row_id = tl.load(ids + at, mask=real, other=-1)
    place = at
    if SORTED:
        place = tl.load(places + at, mask=real, other=0)
    owned = real & (row_id >= row_lo) & (row_id < row_hi)
    row = tl.where(owned, row_id - row_lo, 0)

    scale_base = scales_address.to(tl.pointer_type(tl.uint8))
    scales = tl.load(scale_base + row * SCALE_STRIDE + part, mask=owned, other=0)
    column = tl.arange(0, 32)
    value_base = values_address.to(tl.pointer_type(tl.uint8))
    first = value_base + (row * VALUE_STRIDE + part * 32)
    pointers = tl.multiple_of(first[:, None] + column[None, :], (8, 8))
    codes = tl.load(pointers, mask=owned[:, None], other=0)

    if INTERPRETED:
        decoded = to_bf16(e4m3_value(codes) * e8m0_value(scales)[:, None])
    else:
        # The GPU's own conversions are exact here; the interpreter's are not.
        exact = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        decoded = (exact * e8m0_value(scales)[:, None]).to(tl.bfloat16)
    if POSITIVE_ZERO:
        bits = decoded.to(tl.uint16, bitcast=True)
        decoded = tl.where(bits == 0x8000, 0, bits).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    target = out + (place * 256 + part * 32)
    tl.store(target[:, None] + column[None, :], decoded, mask=real[:, None])
