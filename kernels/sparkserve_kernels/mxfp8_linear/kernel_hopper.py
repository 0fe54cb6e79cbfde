"""MXFP8 rows times MXFP8 weights on a GPU without block-scaled matrix instructions (sm_90).

Few rows: the weights are the first operand and the rows the second, whose least width is 8, so
that six rows fill an instruction. Groups are the batch axis of the product: e4m3 becomes fp16
(exact), a group's sum of 32 products is scaled in fp32 by two exact multiplications by powers of
two, and only then added. Fused into fma or not, that gives the same bits.

Many rows: both operands become bf16 with their scales multiplied in, which is exact for every
value that is normal in bf16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.mxfp8_linear.kernel import finish
from sparkserve_kernels.numerics.kernel import (
    dot,
    e4m3_to_fp16_on,
    exponent_value,
    mxfp8_quantise_groups,
    to_fp32,
)


@triton.jit
def few_rows_kernel(
    q_ptr,
    q_scales_ptr,
    w_ptr,
    w_scales_ptr,
    bias_ptr,
    out_ptr,
    partials_ptr,
    arrivals_ptr,
    rows,
    columns,
    K,
    q_stride,
    q_scales_stride,
    w_stride,
    w_scales_stride,
    out_stride,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    SCALES: tl.constexpr,
    FUSED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One tile of BM rows and BN columns over one of SPLIT runs of K; see the Spark's kernel.

    SCALES: how scales are read, see group_scales.
    FUSED: q holds bf16 rows, which every program quantises for itself; their scales are unused.
    """
    GROUPS: tl.constexpr = BK // 32
    row_tiles = tl.cdiv(rows, BM)
    tile = tl.program_id(0)
    row = (tile % row_tiles) * BM + tl.arange(0, BM)
    column = (tile // row_tiles) * BN + tl.arange(0, BN)
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    near_column = tl.minimum(column, columns - 1).to(tl.int64)
    inside = tl.arange(0, BK)
    q_from = q_ptr + near_row[:, None] * q_stride
    w_from = w_ptr + near_column[:, None] * w_stride
    q_scales_at = near_row * q_scales_stride
    w_scales_at = near_column * w_scales_stride
    q_words = tl.cast(rows, tl.int64) * q_scales_stride // 4
    w_words = tl.cast(columns, tl.int64) * w_scales_stride // 4
    steps = tl.cdiv(K, BK)
    first = tl.program_id(1) * steps // SPLIT
    last = (tl.program_id(1) + 1) * steps // SPLIT
    acc = tl.zeros((GROUPS, BN, BM), dtype=tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * BK + inside
        if WHOLE:
            q = tl.load(q_from + at[None, :])
            w = tl.load(w_from + at[None, :])
        else:
            real = (at < K)[None, :]
            q = tl.load(q_from + at[None, :], mask=real, other=0.0)
            w = tl.load(w_from + at[None, :], mask=real, other=0.0)
        if FUSED:
            groups = tl.reshape(to_fp32(q), (BM, GROUPS, 32))
            bits, byte = mxfp8_quantise_groups(groups, INTERPRETED)
            q_half = e4m3_to_fp16_on(bits, INTERPRETED)
            q_scale = tl.trans(exponent_value(byte.to(tl.uint32)))
        else:
            q_half = tl.reshape(e4m3_to_fp16_on(q, INTERPRETED), (BM, GROUPS, 32))
            q_scale = group_scales(
                q_scales_ptr, q_scales_at, q_words, step, K, BM, GROUPS, WHOLE, SCALES
            )
        w_scale = group_scales(
            w_scales_ptr, w_scales_at, w_words, step, K, BN, GROUPS, WHOLE, SCALES
        )
        left = tl.permute(tl.reshape(e4m3_to_fp16_on(w, INTERPRETED), (BN, GROUPS, 32)), (1, 0, 2))
        right = tl.permute(q_half, (1, 2, 0))
        part = tl.dot(left, right)
        acc += (part * q_scale[:, None, :]) * w_scale[:, :, None]
    finish(
        tl.sum(acc, axis=0),
        row[None, :],
        column[:, None],
        tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :],
        bias_ptr,
        out_ptr,
        partials_ptr,
        arrivals_ptr,
        rows,
        columns,
        out_stride,
        SPLIT,
        BM * BN,
        HAS_BIAS,
        INTERPRETED,
    )


@triton.jit
def many_rows_kernel(
    q_ptr,
    q_scales_ptr,
    w_ptr,
    w_scales_ptr,
    bias_ptr,
    out_ptr,
    partials_ptr,
    arrivals_ptr,
    rows,
    columns,
    K,
    q_stride,
    q_scales_stride,
    w_stride,
    w_scales_stride,
    out_stride,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One tile of BM rows and BN columns, operands widened to bf16; see few_rows_kernel."""
    GROUPS: tl.constexpr = BK // 32
    row_tiles = tl.cdiv(rows, BM)
    tile = tl.program_id(0)
    row = (tile % row_tiles) * BM + tl.arange(0, BM)
    column = (tile // row_tiles) * BN + tl.arange(0, BN)
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    near_column = tl.minimum(column, columns - 1).to(tl.int64)
    inside = tl.arange(0, BK)
    q_from = q_ptr + near_row[:, None] * q_stride
    w_from = w_ptr + near_column[:, None] * w_stride
    q_scales_at = near_row * q_scales_stride
    w_scales_at = near_column * w_scales_stride
    q_words = tl.cast(rows, tl.int64) * q_scales_stride // 4
    w_words = tl.cast(columns, tl.int64) * w_scales_stride // 4
    steps = tl.cdiv(K, BK)
    first = tl.program_id(1) * steps // SPLIT
    last = (tl.program_id(1) + 1) * steps // SPLIT
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * BK + inside
        if WHOLE:
            q = tl.load(q_from + at[None, :])
            w = tl.load(w_from + at[None, :])
        else:
            real = (at < K)[None, :]
            q = tl.load(q_from + at[None, :], mask=real, other=0.0)
            w = tl.load(w_from + at[None, :], mask=real, other=0.0)
        q_scale = group_scales(
            q_scales_ptr, q_scales_at, q_words, step, K, BM, GROUPS, WHOLE, SCALES
        )
        w_scale = group_scales(
            w_scales_ptr, w_scales_at, w_words, step, K, BN, GROUPS, WHOLE, SCALES
        )
        left = widened(q, q_scale, BM, GROUPS, INTERPRETED)
        right = widened(w, w_scale, BN, GROUPS, INTERPRETED)
        acc = dot(left, tl.trans(right), acc, INTERPRETED)
    finish(
        acc,
        row[:, None],
        column[None, :],
        tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :],
        bias_ptr,
        out_ptr,
        partials_ptr,
        arrivals_ptr,
        rows,
        columns,
        out_stride,
        SPLIT,
        BM * BN,
        HAS_BIAS,
        INTERPRETED,
    )


@triton.jit
def widened(values, scale, ROWS: tl.constexpr, GROUPS: tl.constexpr, INTERPRETED: tl.constexpr):
    """e4m3 [ROWS, 32*GROUPS] times scale [GROUPS, ROWS] as bf16."""
    groups = tl.reshape(e4m3_to_fp16_on(values, INTERPRETED), (ROWS, GROUPS, 32)).to(tl.float32)
    scaled = groups * tl.trans(scale)[:, :, None]
    return tl.reshape(scaled, (ROWS, GROUPS * 32)).to(tl.bfloat16)


@triton.jit
def group_scales(
    scales_ptr,
    row_at,
    words_there,
    step,
    K,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    WHOLE: tl.constexpr,
    SCALES: tl.constexpr,
):
    """fp32 scales [GROUPS, ROWS] of one step; row_at: where each row's bytes begin.

    SCALES 0: byte by byte, which no asynchronous load can do. 1: four as one word; every row
    begins at a multiple of four bytes. 2: rows follow each other without a gap and begin
    anywhere; a word is put together from the two it lies in, of words_there that exist.
    Groups past K give 2^-127, byte 255, which no quantiser emits, an infinity.
    """
    group = step * GROUPS + tl.arange(0, GROUPS)
    if SCALES == 0:
        real = None if WHOLE else (group < K // 32)[:, None]
        at = scales_ptr + (row_at[None, :] + group[:, None])
        scales = tl.load(at, mask=real, other=None if WHOLE else 0).to(tl.uint32)
    else:
        words_ptr = scales_ptr.to(tl.pointer_type(tl.uint32), bitcast=True)
        word = step * (GROUPS // 4) + tl.arange(0, GROUPS // 4)
        at = (row_at // 4)[:, None] + word[None, :]
        if SCALES == 1:
            real = None if WHOLE else (word < K // 128)[None, :]
            words = tl.load(words_ptr + at, mask=real, other=None if WHOLE else 0)
        else:
            wanted = (word * 4 < K // 32)[None, :]
            low = tl.load(words_ptr + at, mask=wanted, other=0)
            high = tl.load(words_ptr + at + 1, mask=wanted & (at + 1 < words_there), other=0)
            shift = ((row_at % 4) * 8).to(tl.uint32)[:, None]
            words = (low >> shift) | ((high << 1) << (31 - shift))
        inside = (tl.arange(0, 4) * 8).to(tl.uint32)
        bytes_ = tl.reshape(words[:, :, None] >> inside[None, None, :], (ROWS, GROUPS))
        if SCALES == 1:
            scales = tl.permute(bytes_ & 0xFF, (1, 0))
        else:
            # What follows a row's last byte is the next row's first.
            keep = tl.where(group < K // 32, 0xFF, 0).to(tl.uint32)
            scales = tl.permute(bytes_ & keep[None, :], (1, 0))
    return exponent_value(scales)
