"""Mix a sublayer's output into the residual streams.

For one token with streams R_k of width H and the sublayer's output f, in fp32::

    R'_j = bf16(post_j * f + (((comb_0j * R_0 + comb_1j * R_1) + comb_2j * R_2) + comb_3j * R_3))

Per token it reads 4*H + H bf16 and writes 4*H, each once. A program takes a few columns of all
four streams of one token and reads them all before it writes, so that a stream may be written
where it lies.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import to_bf16_on, to_fp32


@triton.jit
def post_kernel(
    residual_ptr,
    x_ptr,
    post_ptr,
    comb_ptr,
    out_ptr,
    residual_stride,
    x_stride,
    out_stride,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program mixes COLUMNS columns of one row."""
    row = (tl.program_id(0) // ((HIDDEN + COLUMNS - 1) // COLUMNS)).to(tl.int64)
    part = tl.program_id(0) % ((HIDDEN + COLUMNS - 1) // COLUMNS)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    real = column < HIDDEN
    streams = residual_ptr + row * residual_stride + column
    first = to_fp32(tl.load(streams, mask=real, other=0.0))
    second = to_fp32(tl.load(streams + HIDDEN, mask=real, other=0.0))
    third = to_fp32(tl.load(streams + 2 * HIDDEN, mask=real, other=0.0))
    fourth = to_fp32(tl.load(streams + 3 * HIDDEN, mask=real, other=0.0))
    x = to_fp32(tl.load(x_ptr + row * x_stride + column, mask=real, other=0.0))
    post = post_ptr + row * 4
    comb = comb_ptr + row * 16
    out = out_ptr + row * out_stride + column
    for stream in tl.static_range(4):
        mixed = tl.load(comb + stream) * first
        mixed += tl.load(comb + 4 + stream) * second
        mixed += tl.load(comb + 8 + stream) * third
        mixed += tl.load(comb + 12 + stream) * fourth
        mixed = tl.load(post + stream) * x + mixed
        tl.store(out + stream * HIDDEN, to_bf16_on(mixed, INTERPRETED), mask=real)
