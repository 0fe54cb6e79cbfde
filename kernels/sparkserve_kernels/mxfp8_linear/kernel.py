"""MXFP8 rows times MXFP8 weights by the block-scaled matrix instructions of sm_12x.

out[m, n] = bf16(sum over groups g of 2^(sx[m,g] + sw[n,g] - 254) * (q[m, g] . w[n, g]) + bias[n])

Moves N*K*(1 + 1/32) bytes of weights once per tile of rows. Where rows are few, several programs
share a tile of columns: each sums a run of K, and the program that arrives last adds the runs up
in their order and writes the result, so that the bits do not depend on who came last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import to_bf16_on, to_fp32


@triton.jit
def mxfp8_linear_kernel(
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
    HAS_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One tile of BM rows and BN columns over one of SPLIT runs of K.

    WHOLE: K is a multiple of BK. Rows and columns past the end repeat the last one: what they
    give is not stored, and no load of a whole tile needs a mask.
    """
    row_tiles = tl.cdiv(rows, BM)
    tile = tl.program_id(0)
    row = (tile % row_tiles) * BM + tl.arange(0, BM)
    column = (tile // row_tiles) * BN + tl.arange(0, BN)
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    near_column = tl.minimum(column, columns - 1).to(tl.int64)
    inside = tl.arange(0, BK)
    group = tl.arange(0, BK // 32)
    q_from = q_ptr + near_row[:, None] * q_stride
    w_from = w_ptr + near_column[:, None] * w_stride
    q_scales_from = q_scales_ptr + near_row[:, None] * q_scales_stride
    w_scales_from = w_scales_ptr + near_column[:, None] * w_scales_stride
    steps = tl.cdiv(K, BK)
    first = tl.program_id(1) * steps // SPLIT
    last = (tl.program_id(1) + 1) * steps // SPLIT
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * BK + inside
        at_group = step * (BK // 32) + group
        if WHOLE:
            q = tl.load(q_from + at[None, :])
            w = tl.load(w_from + at[None, :])
            q_scales = tl.load(q_scales_from + at_group[None, :])
            w_scales = tl.load(w_scales_from + at_group[None, :])
        else:
            real = (at < K)[None, :]
            real_group = (at_group < K // 32)[None, :]
            q = tl.load(q_from + at[None, :], mask=real, other=0.0)
            w = tl.load(w_from + at[None, :], mask=real, other=0.0)
            q_scales = tl.load(q_scales_from + at_group[None, :], mask=real_group, other=127)
            w_scales = tl.load(w_scales_from + at_group[None, :], mask=real_group, other=127)
        acc = tl.dot_scaled(q, q_scales, "e4m3", tl.trans(w), w_scales, "e4m3", acc)
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
def finish(
    acc,
    row,
    column,
    cell,
    bias_ptr,
    out_ptr,
    partials_ptr,
    arrivals_ptr,
    rows,
    columns,
    out_stride,
    SPLIT: tl.constexpr,
    CELLS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Store a tile's sums, or leave them for the last of its SPLIT programs.

    acc: fp32 of any two axes; row, column, cell: which row and column an element is of, and its
    place in a partial sum of CELLS elements.
    """
    if SPLIT == 1:
        store(acc, row, column, bias_ptr, out_ptr, rows, columns, out_stride, HAS_BIAS, INTERPRETED)
    else:
        tile = tl.program_id(0)
        partials = partials_ptr + tile.to(tl.int64) * (SPLIT * CELLS) + cell
        tl.store(partials + tl.program_id(1) * CELLS, acc)
        # All threads have stored before one of them announces it.
        tl.debug_barrier()
        if tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") == SPLIT - 1:
            total = tl.load(partials, cache_modifier=".cg")
            for split in tl.static_range(1, SPLIT):
                total += tl.load(partials + split * CELLS, cache_modifier=".cg")
            store(
                total,
                row,
                column,
                bias_ptr,
                out_ptr,
                rows,
                columns,
                out_stride,
                HAS_BIAS,
                INTERPRETED,
            )
            tl.store(arrivals_ptr + tile, 0)


@triton.jit
def store(
    acc,
    row,
    column,
    bias_ptr,
    out_ptr,
    rows,
    columns,
    out_stride,
    HAS_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Add the bias and write bf16."""
    real = (row < rows) & (column < columns)
    if HAS_BIAS:
        acc += to_fp32(tl.load(bias_ptr + column, mask=column < columns, other=0.0))
    else:
        # A sum that underflowed to -0 becomes +0, as it does where zeros follow.
        acc += 0.0
    target = out_ptr + row.to(tl.int64) * out_stride + column
    tl.store(target, to_bf16_on(acc, INTERPRETED), mask=real)
