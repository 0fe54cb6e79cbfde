"""Combine the residual streams and norm the sum.

For one token with streams R_k of width H, in fp32::

    y   = bf16(((pre_0 * R_0 + pre_1 * R_1) + pre_2 * R_2) + pre_3 * R_3)
    out = bf16(y * rsqrt(mean(y^2) + eps) * weight)

Per token it reads 4*H bf16 and writes H, each once: y stays in registers between its sum of
squares and the result. H = 5120 is taken as 4096 + 1024, because a tile's length is a power of two
and 8192 would leave three threads of eight idle. One program makes one row, whatever their number.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import to_bf16_on, to_fp32


@triton.jit
def _combined(streams, pre, at, real, HIDDEN: tl.constexpr, INTERPRETED: tl.constexpr):
    """One part of a row combined, rounded to bf16 and kept as fp32; 0 past its end."""
    y = tl.load(pre) * to_fp32(tl.load(streams + at, mask=real, other=0.0))
    for stream in tl.static_range(1, 4):
        value = to_fp32(tl.load(streams + stream * HIDDEN + at, mask=real, other=0.0))
        y += tl.load(pre + stream) * value
    return to_fp32(to_bf16_on(y, INTERPRETED))


@triton.jit
def _store(out, y, factor, weight, at, real, INTERPRETED: tl.constexpr):
    normed = y * factor * to_fp32(tl.load(weight + at, mask=real, other=0.0))
    tl.store(out + at, to_bf16_on(normed, INTERPRETED), mask=real)


@triton.jit
def combine_norm_kernel(
    residual_ptr,
    pre_ptr,
    weight_ptr,
    out_ptr,
    residual_stride,
    out_stride,
    eps: tl.float32,
    HIDDEN: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program makes one row."""
    row = tl.program_id(0).to(tl.int64)
    streams = residual_ptr + row * residual_stride
    out = out_ptr + row * out_stride
    pre = pre_ptr + row * 4
    head = tl.arange(0, HEAD)
    tail = HEAD + tl.arange(0, TAIL)
    in_head = head < HIDDEN
    in_tail = tail < HIDDEN
    y_head = _combined(streams, pre, head, in_head, HIDDEN, INTERPRETED)
    y_tail = _combined(streams, pre, tail, in_tail, HIDDEN, INTERPRETED)
    squares = tl.sum(y_head * y_head, axis=0) + tl.sum(y_tail * y_tail, axis=0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(squares / HIDDEN + eps))
    _store(out, y_head, factor, weight_ptr, head, in_head, INTERPRETED)
    _store(out, y_tail, factor, weight_ptr, tail, in_tail, INTERPRETED)
