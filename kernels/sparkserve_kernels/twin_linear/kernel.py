"""Rows times an fp8 twin: the weight is widened in registers and never lies in memory as bf16.

Two ways to the same sums. *Wide* widens bytes to bf16 by integer arithmetic (the four bits of
exponent and three of mantissa, moved to their place in a bf16, are the value times 2^-120) and
makes one bf16 product per step. *Grouped* is for sm_90, where that arithmetic costs more than the
bytes: it widens with the hardware's conversion to fp16, takes a group of 32 columns as the batch
axis of the product, and scales a group's sums by exact powers of two; x becomes fp16 times a power
of two per (row, group), exact for all elements within 2^-29 of the group's largest. Both ways
have a form for the bf16 weight itself (``TWIN`` false), tile for tile the same, to compare with.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import (
    dot,
    e4m3_to_fp16_on,
    e4m3_value,
    e8m0_value,
    exponent_value,
    mxfp8_quantise,
    round_bf16,
    to_bf16,
    to_bf16_on,
    to_fp32,
)


@triton.jit
def wide_kernel(
    x_ptr,
    w_ptr,
    exponents_ptr,
    out_ptr,
    scales_ptr,
    partials_ptr,
    arrivals_ptr,
    rows,
    columns,
    K,
    groups,
    x_stride,
    x_group_stride,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    TWIN: tl.constexpr,
    WHOLE: tl.constexpr,
    WORDS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One tile of BM rows and BN columns of one group over one of SPLIT runs of K.

    Program (column tile x row tile, split, group). EPILOGUE: 0 stores bf16, 1 fp32, 2 MXFP8.
    """
    row_tiles = tl.cdiv(rows, BM)
    row = (tl.program_id(0) % row_tiles) * BM + tl.arange(0, BM)
    column = (tl.program_id(0) // row_tiles) * BN + tl.arange(0, BN)
    group = tl.program_id(2)
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    near_column = tl.minimum(column, columns - 1)
    inside = tl.arange(0, BK)
    x_from = x_ptr + near_row[:, None] * x_stride + group.to(tl.int64) * x_group_stride
    w_from = w_ptr + (group.to(tl.int64) * columns + near_column[:, None]) * K
    line = group.to(tl.int64) * (columns // BLOCK_ROWS) + near_column // BLOCK_ROWS
    exponents_from = exponents_ptr + line[:, None] * (K // 32)
    steps = tl.cdiv(K, BK)
    first = tl.program_id(1) * steps // SPLIT
    last = (tl.program_id(1) + 1) * steps // SPLIT
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * BK + inside
        if WHOLE:
            x = tl.load(x_from + at[None, :])
            w = tl.load(w_from + at[None, :])
        else:
            x = tl.load(x_from + at[None, :], mask=(at < K)[None, :], other=0.0)
            w = tl.load(w_from + at[None, :], mask=(at < K)[None, :], other=0.0)
        byte = load_exponents(exponents_from, step, K, BN, BK // 32, WHOLE, WORDS)
        if TWIN:
            w = widened(w, byte, BN, BK // 32, INTERPRETED)
        else:
            w = scaled(w, byte, BN, BK // 32, INTERPRETED)
        acc = dot(x, tl.trans(w), acc, INTERPRETED)
    finish(
        acc,
        tl.program_id(0) // row_tiles,
        out_ptr,
        scales_ptr,
        partials_ptr,
        arrivals_ptr,
        rows,
        columns,
        groups,
        BM,
        BN,
        SPLIT,
        EPILOGUE,
        INTERPRETED,
    )


@triton.jit
def grouped_kernel(
    x_ptr,
    w_ptr,
    exponents_ptr,
    out_ptr,
    scales_ptr,
    partials_ptr,
    arrivals_ptr,
    rows,
    columns,
    K,
    groups,
    x_stride,
    x_group_stride,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    TWIN: tl.constexpr,
    WHOLE: tl.constexpr,
    WORDS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """The same tile with groups of 32 columns as the batch axis; see ``wide_kernel``."""
    PARTS: tl.constexpr = BK // 32
    row_tiles = tl.cdiv(rows, BM)
    row = (tl.program_id(0) % row_tiles) * BM + tl.arange(0, BM)
    column = (tl.program_id(0) // row_tiles) * BN + tl.arange(0, BN)
    group = tl.program_id(2)
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    near_column = tl.minimum(column, columns - 1)
    inside = tl.arange(0, BK)
    x_from = x_ptr + near_row[:, None] * x_stride + group.to(tl.int64) * x_group_stride
    w_from = w_ptr + (group.to(tl.int64) * columns + near_column[:, None]) * K
    line = group.to(tl.int64) * (columns // BLOCK_ROWS) + near_column // BLOCK_ROWS
    exponents_from = exponents_ptr + line[:, None] * (K // 32)
    steps = tl.cdiv(K, BK)
    first = tl.program_id(1) * steps // SPLIT
    last = (tl.program_id(1) + 1) * steps // SPLIT
    acc = tl.zeros((PARTS, BN, BM), dtype=tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * BK + inside
        if WHOLE:
            x = tl.load(x_from + at[None, :])
            w = tl.load(w_from + at[None, :])
        else:
            x = tl.load(x_from + at[None, :], mask=(at < K)[None, :], other=0.0)
            w = tl.load(w_from + at[None, :], mask=(at < K)[None, :], other=0.0)
        byte = load_exponents(exponents_from, step, K, BN, PARTS, WHOLE, WORDS)
        if TWIN:
            x_half, x_scale = normalised(to_fp32(tl.reshape(x, (BM, PARTS, 32))))
            w_half = tl.reshape(e4m3_to_fp16_on(w, INTERPRETED), (BN, PARTS, 32))
            part = tl.dot(tl.permute(w_half, (1, 0, 2)), tl.permute(x_half, (1, 2, 0)))
            w_scale = tl.trans(exponent_value(byte))
            acc += (part * tl.trans(x_scale)[:, None, :]) * w_scale[:, :, None]
        else:
            w = scaled(w, byte, BN, PARTS, INTERPRETED)
            left = tl.permute(tl.reshape(w, (BN, PARTS, 32)), (1, 0, 2))
            right = tl.permute(tl.reshape(x, (BM, PARTS, 32)), (1, 2, 0))
            if INTERPRETED:
                left = left.to(tl.float32)
                right = right.to(tl.float32)
            # Unknown to the compiler, so that it does not add within the product, where it rounds
            # otherwise than after it, as the twin must.
            one = tl.where(columns > 0, 1.0, 2.0)
            acc += tl.dot(left, right) * one
    finish(
        tl.trans(tl.sum(acc, axis=0)),
        tl.program_id(0) // row_tiles,
        out_ptr,
        scales_ptr,
        partials_ptr,
        arrivals_ptr,
        rows,
        columns,
        groups,
        BM,
        BN,
        SPLIT,
        EPILOGUE,
        INTERPRETED,
    )


@triton.jit
def load_exponents(
    exponents_from,
    step,
    K,
    BN: tl.constexpr,
    PARTS: tl.constexpr,
    WHOLE: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Exponents [BN, PARTS] (uint32, 0..255) of one step; those past K are 0.

    WORDS: four are loaded as one. Single bytes cannot be fetched ahead: every step would wait for
    its own.
    """
    if WORDS:
        word = step * (PARTS // 4) + tl.arange(0, PARTS // 4)
        words_from = exponents_from.to(tl.pointer_type(tl.uint32), bitcast=True)
        words = tl.load(words_from + word[None, :])
        shift = (tl.arange(0, 4) * 8).to(tl.uint32)
        exponents = tl.reshape((words[:, :, None] >> shift[None, None, :]) & 0xFF, (BN, PARTS))
    else:
        part = step * PARTS + tl.arange(0, PARTS)
        real = None if WHOLE else (part < K // 32)[None, :]
        other = None if WHOLE else 0
        exponents = tl.load(exponents_from + part[None, :], mask=real, other=other).to(tl.uint32)
    return exponents


@triton.jit
def widened(w, byte, ROWS: tl.constexpr, PARTS: tl.constexpr, INTERPRETED: tl.constexpr):
    """e4m3 [ROWS, 32*PARTS] times 2^(byte [ROWS, PARTS] - 127) as bf16, rounded once."""
    bits = w.to(tl.uint8, bitcast=True)
    if INTERPRETED:
        scale = tl.expand_dims(e8m0_value(byte), 2)
        groups = tl.reshape(e4m3_value(bits), (ROWS, PARTS, 32))
        return tl.reshape(to_bf16(groups * scale), (ROWS, PARTS * 32))
    wide = bits.to(tl.uint16)
    moved = (((wide & 0x80) << 8) | ((wide & 0x7F) << 4)).to(tl.bfloat16, bitcast=True)
    # 2^120: the difference of the two formats' exponents; exact, subnormals included.
    value = moved * tl.full((), 0x7B80, tl.uint16).to(tl.bfloat16, bitcast=True)
    bits_of_scale = tl.maximum(byte.to(tl.uint16) << 7, 0x0040).to(tl.uint16)
    scale = bits_of_scale.to(tl.bfloat16, bitcast=True)
    groups = tl.reshape(value, (ROWS, PARTS, 32)) * tl.expand_dims(scale, 2)
    return tl.reshape(groups, (ROWS, PARTS * 32))


@triton.jit
def scaled(w, byte, ROWS: tl.constexpr, PARTS: tl.constexpr, INTERPRETED: tl.constexpr):
    """bf16 [ROWS, 32*PARTS] times 2^(byte [ROWS, PARTS] - 127), of which 127 changes nothing.

    Not for the value: an operand that depends on bytes loaded singly is dealt out to lanes as
    bytes are, four elements of K at a time. Without it the matrix unit would get the columns of K
    in another order than the twin's, and the last bit of a sum depends on that order.
    """
    scale = tl.expand_dims((byte.to(tl.uint16) << 7).to(tl.uint16), 2)
    groups = tl.reshape(w, (ROWS, PARTS, 32))
    if INTERPRETED:
        wide = to_fp32(groups) * to_fp32(scale.to(tl.bfloat16, bitcast=True))
        return tl.reshape(to_bf16(wide), (ROWS, PARTS * 32))
    return tl.reshape(groups * scale.to(tl.bfloat16, bitcast=True), (ROWS, PARTS * 32))


@triton.jit
def normalised(x):
    """fp32 [rows, parts, 32] as fp16 with its groups' largest in [2^14, 2^15), and their scales.

    The scales [rows, parts] are powers of two by which the fp16 values must be multiplied.
    """
    # Whether a NaN takes part is all the same: it makes the whole row NaN.
    amax = tl.max(tl.abs(x), axis=2)
    exponent = tl.maximum((amax.to(tl.uint32, bitcast=True) >> 23).to(tl.int32), 14)
    up = ((268 - exponent) << 23).to(tl.uint32).to(tl.float32, bitcast=True)
    return (x * tl.expand_dims(up, 2)).to(tl.float16), exponent_value(exponent - 14)


@triton.jit
def finish(
    acc,
    column_tile,
    out_ptr,
    scales_ptr,
    partials_ptr,
    arrivals_ptr,
    rows,
    columns,
    groups,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLIT: tl.constexpr,
    EPILOGUE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Store a tile's sums [BM, BN], or leave them for the last of its SPLIT programs."""
    if SPLIT == 1:
        store(
            acc, column_tile, out_ptr, scales_ptr, rows, columns, groups,
            BM, BN, EPILOGUE, INTERPRETED,
        )  # fmt: skip
    else:
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        cell = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        partials = partials_ptr + tile.to(tl.int64) * (SPLIT * BM * BN) + cell
        tl.store(partials + tl.program_id(1) * (BM * BN), acc)
        # All threads have stored before one of them announces it.
        tl.debug_barrier()
        if tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") == SPLIT - 1:
            total = tl.load(partials, cache_modifier=".cg")
            for split in tl.static_range(1, SPLIT):
                total += tl.load(partials + split * (BM * BN), cache_modifier=".cg")
            store(
                total, column_tile, out_ptr, scales_ptr, rows, columns, groups,
                BM, BN, EPILOGUE, INTERPRETED,
            )  # fmt: skip
            tl.store(arrivals_ptr + tile, 0)


@triton.jit
def store(
    acc,
    column_tile,
    out_ptr,
    scales_ptr,
    rows,
    columns,
    groups,
    BM: tl.constexpr,
    BN: tl.constexpr,
    EPILOGUE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Write a tile as bf16, fp32, or MXFP8 rows with 128x4 scales and zeros for padding rows."""
    row_tiles = tl.cdiv(rows, BM)
    row = (tl.program_id(0) % row_tiles) * BM + tl.arange(0, BM)
    column = column_tile * BN + tl.arange(0, BN)
    real = (row < rows)[:, None] & (column < columns)[None, :]
    wide = groups * columns
    at = row.to(tl.int64)[:, None] * wide + tl.program_id(2) * columns + column[None, :]
    if EPILOGUE == 0:
        tl.store(out_ptr + at, to_bf16_on(acc, INTERPRETED), mask=real)
    elif EPILOGUE == 1:
        tl.store(out_ptr + at, acc, mask=real)
    else:
        q, byte = mxfp8_quantise(round_bf16(acc), BM, BN, INTERPRETED)
        tl.store(out_ptr + at, q.to(tl.float8e4nv, bitcast=True), mask=real)
        part = (tl.program_id(2) * columns + column_tile * BN) // 32 + tl.arange(0, BN // 32)
        inside = ((column_tile * BN) // 32 + tl.arange(0, BN // 32)) < columns // 32
        here = swizzled(row[:, None], part[None, :], wide // 32)
        tl.store(scales_ptr + here, byte, mask=(row < rows)[:, None] & inside[None, :])
        if tl.program_id(0) % row_tiles == row_tiles - 1:
            padding = rows // 128 * 128 + tl.arange(0, 128)
            there = swizzled(padding[:, None], part[None, :], wide // 32)
            empty = tl.zeros((128, BN // 32), dtype=tl.uint8)
            only = (padding >= rows) & (rows % 128 != 0)
            tl.store(scales_ptr + there, empty, mask=only[:, None] & inside[None, :])


@triton.jit
def swizzled(row, part, parts):
    """Byte of a (row, group of 32) in the 128x4 layout (docs/format/numbers.md)."""
    tile = (row // 128).to(tl.int64) * tl.cdiv(parts, 4) + part // 4
    return tile * 512 + ((row % 32) * 4 + (row // 32) % 4) * 4 + part % 4
