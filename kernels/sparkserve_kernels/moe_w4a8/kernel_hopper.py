"""The two products where there is no block-scaled matrix instruction (sm_90).

Weights are decoded to bf16 with their scale multiplied in, activations arrive as bf16 values: both
exact, so only the order of sums differs from the Spark's. Weights are the left operand: they go
from shared memory through registers, where they are decoded, into the matrix unit, and eight
columns of tokens are enough. Low and high nibbles form two products over half of K each, so that
no element has to change its lane.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.moe_w4a8.kernel import activation, store_planes
from sparkserve_kernels.numerics.kernel import (
    dot,
    e2m1_value,
    e4m3_value,
    e8m0_value,
    mxfp8_quantise,
    to_bf16,
)

BIAS_BITS = tl.constexpr(62)
"""Decoded weights carry 2^-62: their bits are those of a tiny bf16, and one multiplication by the
scale must bring them into the normal range."""
LARGEST_SCALE = tl.constexpr(190)


@triton.jit
def decode(packed, scale, INTERPRETED: tl.constexpr):
    """Low and high nibbles as bf16, times 2^(scale-127-62), exactly for scales in 64..190.

    packed: uint8; scale: int32 of its shape, e8m0, equal for four neighbours along the last axis.
    """
    if INTERPRETED:
        factor = e8m0_value(tl.maximum(scale - BIAS_BITS, 0))
        return to_bf16(e2m1_value(packed & 15) * factor), to_bf16(e2m1_value(packed >> 4) * factor)
    # Exponent and mantissa of a nibble, put at a bf16's lowest exponent bits, are its value times
    # 2^-126; the multiplier's exponent field is scale + 64.
    factor = scale * 0x00800080 + 0x20002000
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 t, u, a, b;
        prmt.b32 t, $4, 0, 0x1404;
        prmt.b32 u, $4, 0, 0x3424;
        shr.b32 a, t, 6;
        and.b32 a, a, 0x01C001C0;
        lop3.b32 a, t, 0x80008000, a, 0xEA;
        shr.b32 b, u, 6;
        and.b32 b, b, 0x01C001C0;
        lop3.b32 b, u, 0x80008000, b, 0xEA;
        mul.bf16x2 $2, a, $5;
        mul.bf16x2 $3, b, $5;
        shr.b32 a, t, 2;
        and.b32 a, a, 0x01C001C0;
        shl.b32 t, t, 4;
        lop3.b32 a, t, 0x80008000, a, 0xEA;
        shr.b32 b, u, 2;
        and.b32 b, b, 0x01C001C0;
        shl.b32 u, u, 4;
        lop3.b32 b, u, 0x80008000, b, 0xEA;
        mul.bf16x2 $0, a, $5;
        mul.bf16x2 $1, b, $5;
        }""",
        "=r,=r,=r,=r,r,r,r,r,r",
        [packed, factor],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def product(
    weight,
    scale,
    rows,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Weights times rows over all of K, fp32 [COLUMNS, TILE].

    weight, scale: [COLUMNS] pointers to the rows of a weight and of its scales. rows: [TILE]
    pointers to bf16 planes [2, K/2].
    """
    GROUPS: tl.constexpr = DEPTH // 32
    acc = tl.zeros((COLUMNS, TILE), tl.float32)
    for k in range(0, K, DEPTH):
        byte = k // 2 + tl.arange(0, DEPTH // 2)
        group = k // 32 + tl.arange(0, GROUPS)
        if K % DEPTH == 0:
            packed = tl.load(weight[:, None] + byte[None, :])
            scales = tl.load(scale[:, None] + group[None, :])
            even = tl.load(rows[None, :] + byte[:, None])
            odd = tl.load(rows[None, :] + (K // 2 + byte)[:, None])
        else:
            inside = byte < K // 2
            packed = tl.load(weight[:, None] + byte[None, :], mask=inside[None, :], other=0)
            scales = tl.load(
                scale[:, None] + group[None, :], mask=(group < K // 32)[None, :], other=127
            )
            even = tl.load(rows[None, :] + byte[:, None], mask=inside[:, None], other=0.0)
            odd = tl.load(
                rows[None, :] + (K // 2 + byte)[:, None], mask=inside[:, None], other=0.0
            )
        scales = tl.minimum(scales.to(tl.int32), LARGEST_SCALE)
        scales = tl.broadcast_to(scales[:, :, None], (COLUMNS, GROUPS, 16))
        low, high = decode(packed, tl.reshape(scales, (COLUMNS, DEPTH // 2)), INTERPRETED)
        acc = dot(low, even, acc, INTERPRETED)
        acc = dot(high, odd, acc, INTERPRETED)
    return acc * 4611686018427387904.0


@triton.jit
def fc1_values_kernel(
    x_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    out_ptr,
    places,
    limit,
    K: tl.constexpr,
    INTER: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Up and gate of a tile of routes, the activation, and its rows quantised.

    x: [rows, 2, K/2] bf16 planes; w: [experts, 2*INTER, K/2], up before gate. Out, by place in the
    order of routes: the quantised values as bf16 planes [routes, 2, INTER/2].
    """
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    if count == 0:
        return
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    token = (tl.load(order_ptr + place) // SLOTS).to(tl.int64)
    # Up and gate of the same columns are one operand, one above the other.
    both = tl.arange(0, 2 * COLUMNS)
    column = tl.program_id(0) * COLUMNS + both % COLUMNS
    row = expert * (2 * INTER) + (both // COLUMNS) * INTER + tl.minimum(column, INTER - 1)
    acc = product(
        w_ptr + row * (K // 2),
        s_ptr + row * (K // 32),
        x_ptr + token * K,
        K,
        2 * COLUMNS,
        TILE,
        DEPTH,
        INTERPRETED,
    )
    up, gate = tl.split(tl.permute(tl.reshape(acc, (2, COLUMNS, TILE)), (1, 2, 0)))
    inner = tl.trans(activation(up, gate, limit))
    bits, byte = mxfp8_quantise(inner, TILE, COLUMNS, INTERPRETED)
    values = tl.reshape(e4m3_value(bits), (TILE, COLUMNS // 32, 32)) * e8m0_value(byte)[:, :, None]
    half = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    live = (lane < count)[:, None] & (half < INTER // 2)[None, :]
    out = out_ptr + place[:, None] * INTER + half[None, :]
    store_planes(out, tl.reshape(values, (TILE, COLUMNS)), live, INTER // 2, TILE, COLUMNS)


@triton.jit
def fc2_values_kernel(
    x_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    weights_ptr,
    out_ptr,
    places,
    row_stride,
    slot_stride,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Down of a tile of routes times the routes' weights, rounded to bf16 into [routes, HIDDEN]."""
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    if count == 0:
        return
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    route = tl.load(order_ptr + place)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = expert * HIDDEN + tl.minimum(column, HIDDEN - 1)
    acc = product(
        w_ptr + row * (K // 2),
        s_ptr + row * (K // 32),
        x_ptr + place * K,
        K,
        COLUMNS,
        TILE,
        DEPTH,
        INTERPRETED,
    )
    at = (route // SLOTS).to(tl.int64) * row_stride + (route % SLOTS) * slot_stride
    weight = tl.load(weights_ptr + at)
    live = (lane < count)[None, :] & (column < HIDDEN)[:, None]
    out = out_ptr + route.to(tl.int64)[None, :] * HIDDEN + column[:, None]
    tl.store(out, to_bf16(acc * weight[None, :]), mask=live)
