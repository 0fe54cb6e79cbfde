"""Gates and the mixing matrix of the hyper-connection streams.

For one token with its streams laid end to end, x of K = 4*H bf16 values, all in fp32::

    mixes = (x @ fn^T) * rsqrt(mean(x^2) + rms_eps)                     fn [24, K]
    pre   = sigmoid(mixes[0:4] * scale[0] + base[0:4]) + hc_eps
    post  = 2 * sigmoid(mixes[4:8] * scale[1] + base[4:8])
    comb  = softmax_rows(mixes[8:24] * scale[2] + base[8:24]) + hc_eps  [4, 4]
    comb  = comb / (column sums + hc_eps), then 19 times the same for rows, then columns

Order of the additions. A slice is 256 columns, four chunks of 64; a group is ten slices. Within a
slice the matrix units add up (chunks in order; per chunk the lowest part of the weight first).
Slices of a group are added in order in fp32, and the groups in pairs. The sum of squares has the
same order; in a slice it adds each column modulo 64, then neighbours in pairs. Nothing of this
depends on tiles, rows or mode:

* ``splitk``: one program per row block and slice, sums of every slice to memory
  (K/256 * 100 bytes per row written and read again: 65.5 MB at 4,096 rows).
* ``walk``: one program per row block and one or more groups, sums of every group to memory
  (a tenth of that). Programs share a row block because a block of 32 rows, of which a GPU of 132
  processors needs 128, would make every program read all of fn: 251 MB from the L2 for 168 MB of
  x. Blocks of 128 rows read 63 MB.

Products are exact: x is bf16, and a weight is cut into three bf16 parts of eight bits each, by
masking, which together are all its 24 bits. Three bf16 products cost three quarters of the two
tf32 products that would do the same (those run at half the rate), need no wider x, and leave
nothing out. Parts cut beforehand are 1.5 times the bytes of fn and spare every program the work.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import dot, to_fp32

OUTPUTS = tl.constexpr(24)
PADDED = tl.constexpr(32)
CHUNK = tl.constexpr(64)
CHUNKS_A_SLICE = tl.constexpr(4)


@triton.jit
def _upper_half(bits):
    """The upper sixteen of 32 bits as a bf16."""
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _cut(w):
    """Three bf16 tensors whose sum is w (fp32), exactly, the largest first."""
    bits = w.to(tl.uint32, bitcast=True)
    rest = w - (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    rest_bits = rest.to(tl.uint32, bitcast=True)
    last = rest - (rest_bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    last_bits = last.to(tl.uint32, bitcast=True)
    return _upper_half(bits), _upper_half(rest_bits), _upper_half(last_bits)


@triton.jit
def _add_pairs(x, ROWS: tl.constexpr, PAIRS: tl.constexpr):
    return tl.sum(tl.reshape(x, (ROWS, PAIRS, 2)), axis=2)


@triton.jit
def _add_chunk(x, ROWS: tl.constexpr):
    """Sum of 64 columns, neighbours in pairs, so that no layout decides the order."""
    x = _add_pairs(x, ROWS, 32)
    x = _add_pairs(x, ROWS, 16)
    x = _add_pairs(x, ROWS, 8)
    x = _add_pairs(x, ROWS, 4)
    x = _add_pairs(x, ROWS, 2)
    return tl.sum(x, axis=1)


@triton.jit
def sums_kernel(
    x_ptr,
    fn_ptr,
    parts_ptr,
    sums_ptr,
    squares_ptr,
    rows,
    x_stride,
    WIDTH: tl.constexpr,
    SLICES: tl.constexpr,
    PARTIALS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    CUT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program: PARTIALS neighbouring partial sums, SLICES slices in each, of ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.arange(0, PADDED)
    real = row < rows
    x_rows = x_ptr + (row.to(tl.int64) * x_stride)[:, None]
    fn_rows = fn_ptr + (output * WIDTH)[:, None]
    parts_rows = parts_ptr + (output * WIDTH)[:, None]
    used = (output < OUTPUTS)[:, None]
    ALL: tl.constexpr = (WIDTH // (CHUNK * CHUNKS_A_SLICE) + SLICES - 1) // SLICES
    first = tl.program_id(1) * PARTIALS
    for partial in range(first, tl.minimum(first + PARTIALS, ALL)):
        begin = partial * (SLICES * CHUNKS_A_SLICE)
        end = tl.minimum(begin + SLICES * CHUNKS_A_SLICE, WIDTH // CHUNK)
        total = tl.zeros((ROWS, PADDED), tl.float32)
        total_squares = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, PADDED), tl.float32)
        squares = tl.zeros((ROWS, CHUNK), tl.float32)
        for chunk in tl.range(begin, end, num_stages=STAGES):
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            x = tl.load(x_rows + column[None, :], mask=real[:, None], other=0.0)
            if CUT:
                part = parts_rows + column[None, :]
                high = tl.load(part, mask=used, other=0.0)
                middle = tl.load(part + OUTPUTS * WIDTH, mask=used, other=0.0)
                low = tl.load(part + 2 * OUTPUTS * WIDTH, mask=used, other=0.0)
            else:
                high, middle, low = _cut(tl.load(fn_rows + column[None, :], mask=used, other=0.0))
            sums = dot(x, low.T, sums, INTERPRETED)
            sums = dot(x, middle.T, sums, INTERPRETED)
            sums = dot(x, high.T, sums, INTERPRETED)
            wide = to_fp32(x)
            squares = tl.fma(wide, wide, squares)
            if chunk % 4 == 3:  # the last chunk of a slice
                total += sums
                total_squares += _add_chunk(squares, ROWS)
                sums = tl.zeros((ROWS, PADDED), tl.float32)
                squares = tl.zeros((ROWS, CHUNK), tl.float32)
        at = tl.cast(partial, tl.int64) * rows + row
        place = sums_ptr + (at * OUTPUTS)[:, None] + output[None, :]
        tl.store(place, total, mask=real[:, None] & (output < OUTPUTS)[None, :])
        tl.store(squares_ptr + at, total_squares, mask=real)


@triton.jit
def _row_sums(matrix, ROWS: tl.constexpr):
    """[ROWS, 4] sums of [ROWS, 4, 4] along the last axis, in pairs."""
    return tl.sum(tl.sum(tl.reshape(matrix, (ROWS, 4, 2, 2)), axis=3), axis=2)


@triton.jit
def _column_sums(matrix, ROWS: tl.constexpr):
    """[ROWS, 4] sums of [ROWS, 4, 4] along the middle axis, in pairs."""
    return tl.sum(tl.sum(tl.reshape(matrix, (ROWS, 2, 2, 4)), axis=2), axis=1)


@triton.jit
def _doubly_stochastic(matrix, hc_eps, ROWS: tl.constexpr, ITERATIONS: tl.constexpr):
    """Sinkhorn's iterations on [ROWS, 4, 4]; the first has no row step (softmax was one).

    One division a sum, not one an element: divisions are most of the time of it all.
    """
    matrix *= (1.0 / (_column_sums(matrix, ROWS) + hc_eps))[:, None, :]
    for _ in range(ITERATIONS - 1):
        matrix *= (1.0 / (_row_sums(matrix, ROWS) + hc_eps))[:, :, None]
        matrix *= (1.0 / (_column_sums(matrix, ROWS) + hc_eps))[:, None, :]
    return matrix


@triton.jit
def _add_groups(x, LOG_GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum of [2^LOG_GROUPS, ROWS, COLUMNS] along the first axis, neighbours in pairs."""
    for level in tl.static_range(LOG_GROUPS):
        x = tl.reshape(x, (1 << (LOG_GROUPS - level - 1), 2, ROWS, COLUMNS))
        x = tl.sum(x, axis=1)
    return tl.reshape(x, (ROWS, COLUMNS))


@triton.jit
def finish_kernel(
    sums_ptr,
    squares_ptr,
    scale_ptr,
    base_ptr,
    pre_ptr,
    post_ptr,
    comb_ptr,
    rows,
    rms_eps: tl.float32,
    hc_eps: tl.float32,
    WIDTH: tl.constexpr,
    PARTIALS: tl.constexpr,
    GROUP: tl.constexpr,
    LOG_GROUPS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program adds the partial sums of ROWS rows and makes their outputs.

    All 2^LOG_GROUPS groups (the last ones may be empty) are added at the same time, GROUP partial
    sums in each: one after another they would be as many waits for memory.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    wide = row.to(tl.int64)
    GROUPS: tl.constexpr = 1 << LOG_GROUPS
    group = tl.arange(0, GROUPS)
    four = tl.arange(0, 4)
    sixteen = tl.arange(0, 16)
    pre = tl.zeros((GROUPS, ROWS, 4), tl.float32)
    post = tl.zeros((GROUPS, ROWS, 4), tl.float32)
    comb = tl.zeros((GROUPS, ROWS, 16), tl.float32)
    squares = tl.zeros((GROUPS, ROWS, 1), tl.float32)
    for step in tl.static_range(GROUP):
        partial = group * GROUP + step
        there = ((partial < PARTIALS)[:, None] & real[None, :])[:, :, None]
        at = (partial.to(tl.int64)[:, None] * rows + wide[None, :])[:, :, None]
        here = sums_ptr + at * OUTPUTS
        pre += tl.load(here + four[None, None, :], mask=there, other=0.0)
        post += tl.load(here + (4 + four)[None, None, :], mask=there, other=0.0)
        comb += tl.load(here + (8 + sixteen)[None, None, :], mask=there, other=0.0)
        squares += tl.load(squares_ptr + at, mask=there, other=0.0)
    norm = tl.sqrt_rn(_add_groups(squares, LOG_GROUPS, ROWS, 1) / WIDTH + rms_eps)

    pre = tl.div_rn(_add_groups(pre, LOG_GROUPS, ROWS, 4), tl.broadcast_to(norm, (ROWS, 4)))
    pre = tl.sigmoid(pre * tl.load(scale_ptr) + tl.load(base_ptr + four)[None, :]) + hc_eps
    tl.store(pre_ptr + (wide * 4)[:, None] + four[None, :], pre, mask=real[:, None])

    post = tl.div_rn(_add_groups(post, LOG_GROUPS, ROWS, 4), tl.broadcast_to(norm, (ROWS, 4)))
    post = 2.0 * tl.sigmoid(post * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + four)[None, :])
    tl.store(post_ptr + (wide * 4)[:, None] + four[None, :], post, mask=real[:, None])

    comb = tl.div_rn(_add_groups(comb, LOG_GROUPS, ROWS, 16), tl.broadcast_to(norm, (ROWS, 16)))
    comb = comb * tl.load(scale_ptr + 2) + tl.load(base_ptr + 8 + sixteen)[None, :]
    comb = tl.reshape(comb, (ROWS, 4, 4))
    comb = tl.exp(comb - tl.max(comb, axis=2, keep_dims=True))
    comb = comb / _row_sums(comb, ROWS)[:, :, None] + hc_eps
    comb = tl.reshape(_doubly_stochastic(comb, hc_eps, ROWS, ITERATIONS), (ROWS, 16))
    place = comb_ptr + (wide * 16)[:, None] + sixteen[None, :]
    tl.store(place, comb, mask=real[:, None])
