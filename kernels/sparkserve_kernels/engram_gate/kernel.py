"""Gate an Engram value into each hyper-connection stream.

For one token and stream, with x, key and value of width H, all in fp32::

    dot  = sum(x * (qw * kw) * key) * rsqrt(mean(x^2) + eps) * rsqrt(mean(key^2) + eps) * H^-0.5
    gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))
    out  = bf16(x + gate * value)

Per token it reads 2*4*H + H bf16 and writes 4*H, each once: x and value stay in registers between
the sums and the result. H = 5120 is walked as 4096 + 1024, because a tile's length is a power of
two and 8192 would leave three threads of eight idle. A program takes one stream of ROWS tokens, so
that both weights are read once for them; the streams of a token are neighbours and find its
value in the L2. The sums of a token and stream have one order whatever ROWS is: no number of
tokens changes a bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import to_bf16


@triton.jit
def _add3(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _sum3(one, two, three, INTERPRETED: tl.constexpr):
    """Three sums; on a GPU together, which takes one exchange between warps in place of three."""
    if INTERPRETED:
        return tl.sum(one, axis=0), tl.sum(two, axis=0), tl.sum(three, axis=0)
    return tl.reduce((one, two, three), 0, _add3)


@triton.jit
def _weight(q_weight, k_weight, at, real):
    q = tl.load(q_weight + at, mask=real, other=0.0).to(tl.float32)
    k = tl.load(k_weight + at, mask=real, other=0.0).to(tl.float32)
    return q * k


@triton.jit
def _mix(x, gate, value, kept, INTERPRETED: tl.constexpr):
    """Add gate * value (bf16) to x (bf16) in fp32; keep x bit for bit where ``kept``."""
    mixed = x.to(tl.float32) + gate * value.to(tl.float32)
    rounded = to_bf16(mixed) if INTERPRETED else mixed.to(tl.bfloat16)
    return tl.where(kept, x, rounded)


@triton.jit
def gate_kernel(
    x,
    kv,
    q_weight,
    k_weight,
    tokens,
    out,
    rows,
    x_stride,
    kv_stride,
    out_stride,
    image_token,
    eps: tl.float32,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    IMAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program gates one stream of ROWS tokens."""
    stream = tl.program_id(0) % STREAMS
    first = tl.program_id(0) // STREAMS * ROWS
    head = tl.arange(0, HEAD)
    tail = HEAD + tl.arange(0, TAIL)
    all_head = head < HIDDEN
    in_tail = tail < HIDDEN
    weight_head = _weight(q_weight, k_weight, stream * HIDDEN + head, all_head)
    weight_tail = _weight(q_weight, k_weight, stream * HIDDEN + tail, in_tail)
    for row in range(first, tl.minimum(first + ROWS, rows)):
        wide = tl.cast(row, tl.int64)
        x_row = x + (wide * x_stride + stream * HIDDEN)
        key_row = kv + (wide * kv_stride + stream * HIDDEN)
        value_row = kv + (wide * kv_stride + STREAMS * HIDDEN)
        x_head = tl.load(x_row + head)
        x_tail = tl.load(x_row + tail, mask=in_tail, other=0.0)
        key_head = tl.load(key_row + head).to(tl.float32)
        key_tail = tl.load(key_row + tail, mask=in_tail, other=0.0).to(tl.float32)
        value_head = tl.load(value_row + head)
        value_tail = tl.load(value_row + tail, mask=in_tail, other=0.0)
        kept = False
        if IMAGES:
            kept = tl.load(tokens + wide) == image_token

        wide_head = x_head.to(tl.float32)
        wide_tail = x_tail.to(tl.float32)
        dot_head, xx_head, kk_head = _sum3(
            wide_head * weight_head * key_head,
            wide_head * wide_head,
            key_head * key_head,
            INTERPRETED,
        )
        dot_tail, xx_tail, kk_tail = _sum3(
            wide_tail * weight_tail * key_tail,
            wide_tail * wide_tail,
            key_tail * key_tail,
            INTERPRETED,
        )
        x_norm = tl.sqrt_rn((xx_head + xx_tail) / HIDDEN + eps)
        key_norm = tl.sqrt_rn((kk_head + kk_tail) / HIDDEN + eps)
        dot = (dot_head + dot_tail) / x_norm / key_norm * (HIDDEN**-0.5)
        # Comparisons, not maximum and copysign: NaN stays NaN, and -0 is no negative dot.
        size = tl.abs(dot)
        root = tl.sqrt_rn(tl.where(size < 1e-6, 1e-6, size))
        gate = 1.0 / (1.0 + tl.exp(tl.where(dot < 0.0, root, -root)))

        out_row = out + (wide * out_stride + stream * HIDDEN)
        tl.store(out_row + head, _mix(x_head, gate, value_head, kept, INTERPRETED))
        mixed = _mix(x_tail, gate, value_tail, kept, INTERPRETED)
        tl.store(out_row + tail, mixed, mask=in_tail)
