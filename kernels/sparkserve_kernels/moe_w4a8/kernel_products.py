"""Weights times rows where there is no block-scaled matrix instruction (sm_90).

Weights are the left operand: they go from shared memory through registers, where they are decoded,
into the matrix unit, and eight columns of tokens are enough. Low and high nibbles form two products
over half of K each, so that no element has to change its lane.

Few routes: weights and activations become fp16 without their scales (exact); groups are the batch
axis of the product, and each group's sum of 32 products is scaled in fp32 before it is added. Many
routes: weights become bf16 with the scale multiplied in, activations arrive as bf16 values (exact
for scales within 2^-63 to 2^63).
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import (
    dot,
    e2m1_value,
    e4m3_to_fp16_on,
    e8m0_value,
    to_bf16,
)

BIAS_BITS = tl.constexpr(62)
"""Decoded weights carry 2^-62: their bits are those of a tiny bf16, and one multiplication by the
scale must bring them into the normal range."""
LARGEST_SCALE = tl.constexpr(190)


@triton.jit
def decode(packed, scale, INTERPRETED: tl.constexpr):
    """Low and high nibbles as bf16, times 2^(scale-127-62), exactly for scales in 64..190.

    packed: uint8; scale: int32 of its shape, e8m0, at most 190.
    """
    if INTERPRETED:
        factor = e8m0_value(tl.maximum(scale - BIAS_BITS, 0))
        return to_bf16(e2m1_value(packed & 15) * factor), to_bf16(e2m1_value(packed >> 4) * factor)
    # Exponent and mantissa of a nibble, put at a bf16's lowest exponent bits, are its value times
    # 2^-126; the multiplier's exponent field is scale + 64. The layout decides which elements a
    # thread packs together, so each has a multiplier of its own.
    factor = ((scale + 64) << 7).to(tl.uint16)
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
        mul.bf16x2 $3, b, $6;
        shr.b32 a, t, 2;
        and.b32 a, a, 0x01C001C0;
        shl.b32 t, t, 4;
        lop3.b32 a, t, 0x80008000, a, 0xEA;
        shr.b32 b, u, 2;
        and.b32 b, b, 0x01C001C0;
        shl.b32 u, u, 4;
        lop3.b32 b, u, 0x80008000, b, 0xEA;
        mul.bf16x2 $0, a, $5;
        mul.bf16x2 $1, b, $6;
        }""",
        "=&r,=&r,=&r,=&r,r,r,r",
        [packed, factor],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def decode_codes(packed, INTERPRETED: tl.constexpr):
    """Low and high nibbles as fp16 times 2^-6, exactly.

    A nibble's exponent and mantissa at an e4m3's lowest exponent bits are its value times 2^-6.
    """
    if INTERPRETED:
        low, high = e2m1_value(packed & 15) * 0.015625, e2m1_value(packed >> 4) * 0.015625
        return low.to(tl.float16), high.to(tl.float16)
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, c, d;
        .reg .b16 x, y;
        shl.b32 a, $4, 4;
        shl.b32 b, $4, 2;
        shr.b32 c, $4, 2;
        and.b32 b, b, 0x1C1C1C1C;
        and.b32 c, c, 0x1C1C1C1C;
        lop3.b32 a, a, 0x80808080, b, 0xEA;
        lop3.b32 d, $4, 0x80808080, c, 0xEA;
        mov.b32 {x, y}, a;
        cvt.rn.f16x2.e4m3x2 $0, x;
        cvt.rn.f16x2.e4m3x2 $1, y;
        mov.b32 {x, y}, d;
        cvt.rn.f16x2.e4m3x2 $2, x;
        cvt.rn.f16x2.e4m3x2 $3, y;
        }""",
        "=&r,=&r,=&r,=&r,r",
        [packed],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def group_scales(scale, k, K: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """fp32 scales [DEPTH/32, COLUMNS] of one step; scale: [COLUMNS] pointers to rows of bytes.

    Four bytes are one load where rows of them are aligned; past K the scale is 0, and so is byte 0.
    """
    GROUPS: tl.constexpr = DEPTH // 32
    if K % 128 == 0 and DEPTH % 128 == 0:
        word = k // 128 + tl.arange(0, GROUPS // 4)
        words = scale.to(tl.pointer_type(tl.uint32), bitcast=True)[:, None] + word[None, :]
        four = (
            tl.load(words)
            if K % DEPTH == 0
            else tl.load(words, mask=(word < K // 128)[None, :], other=0)
        )
        shift = (tl.arange(0, 4) * 8).to(tl.uint32)
        scales = tl.reshape((four[:, :, None] >> shift[None, None, :]) & 0xFF, (COLUMNS, GROUPS))
    else:
        group = k // 32 + tl.arange(0, GROUPS)
        if K % DEPTH == 0:
            scales = tl.load(scale[:, None] + group[None, :]).to(tl.uint32)
        else:
            inside = (group < K // 32)[None, :]
            scales = tl.load(scale[:, None] + group[None, :], mask=inside, other=0).to(tl.uint32)
    return tl.trans((scales << 23).to(tl.float32, bitcast=True))


@triton.jit
def product_codes(
    part,
    weight,
    scale,
    rows,
    row_scales,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Weights times rows over one of PARTS runs of K, fp32 [COLUMNS, TILE].

    weight, scale: [COLUMNS] pointers to the rows of a weight and of its scales. rows: [TILE]
    pointers to e4m3 planes [2, K/2]; row_scales: [TILE] pointers to fp32 [K/32].
    """
    GROUPS: tl.constexpr = DEPTH // 32
    STEPS: tl.constexpr = (K + DEPTH - 1) // DEPTH
    acc = tl.zeros((GROUPS, COLUMNS, TILE), tl.float32)
    # Stages named here, not in the launch: else only what feeds the product would be fetched ahead.
    for step in tl.range(part * STEPS // PARTS, (part + 1) * STEPS // PARTS, num_stages=STAGES):
        k = step * DEPTH
        byte = k // 2 + tl.arange(0, DEPTH // 2)
        group = k // 32 + tl.arange(0, GROUPS)
        if K % DEPTH == 0:
            packed = tl.load(weight[:, None] + byte[None, :])
            even = tl.load(rows[:, None] + byte[None, :])
            odd = tl.load(rows[:, None] + (K // 2 + byte)[None, :])
            scales = tl.load(row_scales[:, None] + group[None, :])
        else:
            inside = (byte < K // 2)[None, :]
            packed = tl.load(weight[:, None] + byte[None, :], mask=inside, other=0)
            even = tl.load(rows[:, None] + byte[None, :], mask=inside, other=0)
            odd = tl.load(rows[:, None] + (K // 2 + byte)[None, :], mask=inside, other=0)
            live = (group < K // 32)[None, :]
            scales = tl.load(row_scales[:, None] + group[None, :], mask=live, other=0.0)
        low, high = decode_codes(packed, INTERPRETED)
        low = tl.permute(tl.reshape(low, (COLUMNS, GROUPS, 16)), (1, 0, 2))
        high = tl.permute(tl.reshape(high, (COLUMNS, GROUPS, 16)), (1, 0, 2))
        even = tl.permute(
            tl.reshape(e4m3_to_fp16_on(even, INTERPRETED), (TILE, GROUPS, 16)), (1, 2, 0)
        )
        odd = tl.permute(
            tl.reshape(e4m3_to_fp16_on(odd, INTERPRETED), (TILE, GROUPS, 16)), (1, 2, 0)
        )
        sums = tl.dot(high, odd, tl.dot(low, even))
        weight_scales = group_scales(scale, k, K, COLUMNS, DEPTH)
        acc += (sums * tl.trans(scales)[:, None, :]) * weight_scales[:, :, None]
    return tl.sum(acc, axis=0) * 64.0


@triton.jit
def product(
    weight,
    scale,
    rows,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Weights times rows over all of K, fp32 [COLUMNS, TILE].

    weight, scale: [COLUMNS] pointers to the rows of a weight and of its scales. rows: [TILE]
    pointers to bf16 planes [2, K/2].
    """
    GROUPS: tl.constexpr = DEPTH // 32
    acc = tl.zeros((COLUMNS, TILE), tl.float32)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
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
            odd = tl.load(rows[None, :] + (K // 2 + byte)[:, None], mask=inside[:, None], other=0.0)
        scales = tl.minimum(scales.to(tl.int32), LARGEST_SCALE)
        scales = tl.broadcast_to(scales[:, :, None], (COLUMNS, GROUPS, 16))
        low, high = decode(packed, tl.reshape(scales, (COLUMNS, DEPTH // 2)), INTERPRETED)
        acc = dot(low, even, acc, INTERPRETED)
        acc = dot(high, odd, acc, INTERPRETED)
    return acc * 4611686018427387904.0
