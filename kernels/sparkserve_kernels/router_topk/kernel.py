"""Route tokens: read a row of scores once, keep it in registers, and take the best in rounds.

a = sqrt(log(1 + exp(s))) by the formula of ``numerics.elementary``; rank by a + bias as integers in
the order of floats (spec: kernels.md section 6.1). Reads 4 bytes per expert and row and writes 8
per route. One warp holds a row, so that a round is two reductions inside a warp and no barrier: the
greatest rank, then the least id that has it. Weights come from scores read again by id: that costs
a hit in the cache, where a sum over the row would cost five shuffles in every round.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics import elementary
from sparkserve_kernels.numerics.kernel import fma

ROUND = tl.constexpr(elementary.ROUND)
VANISHES = tl.constexpr(elementary.VANISHES)
MINUS_LOG2_E = tl.constexpr(-elementary.LOG2_E)
MINUS_LN2_HIGH = tl.constexpr(-elementary.LN2_HIGH)
MINUS_LN2_LOW = tl.constexpr(-elementary.LN2_LOW)
EXP_2 = tl.constexpr(elementary.EXP[2])
EXP_3 = tl.constexpr(elementary.EXP[3])
EXP_4 = tl.constexpr(elementary.EXP[4])
EXP_5 = tl.constexpr(elementary.EXP[5])
EXP_6 = tl.constexpr(elementary.EXP[6])
LOG1P_0 = tl.constexpr(elementary.LOG1P_UNIT[0])
LOG1P_1 = tl.constexpr(elementary.LOG1P_UNIT[1])
LOG1P_2 = tl.constexpr(elementary.LOG1P_UNIT[2])
LOG1P_3 = tl.constexpr(elementary.LOG1P_UNIT[3])
LOG1P_4 = tl.constexpr(elementary.LOG1P_UNIT[4])
LOG1P_5 = tl.constexpr(elementary.LOG1P_UNIT[5])
LOG1P_6 = tl.constexpr(elementary.LOG1P_UNIT[6])
LOG1P_7 = tl.constexpr(elementary.LOG1P_UNIT[7])
LOG1P_8 = tl.constexpr(elementary.LOG1P_UNIT[8])
FIRST = tl.constexpr(0x7FFFFFFF)
"""Rank of NaN."""
GONE = tl.constexpr(-0x80000000)
"""Rank of what is chosen or no expert: below that of minus infinity."""


@triton.jit
def sqrt_softplus(s, INTERPRETED: tl.constexpr):
    """sqrt(log(1 + exp(s))) of fp32; see ``numerics.elementary``."""
    x = tl.abs(s)
    shifted = fma(x, MINUS_LOG2_E, ROUND, INTERPRETED)
    whole = shifted - ROUND
    rest = fma(whole, MINUS_LN2_LOW, fma(whole, MINUS_LN2_HIGH, -x, INTERPRETED), INTERPRETED)
    # The low bits of the shifted number are the whole part; the others leave to the left.
    power = ((shifted.to(tl.int32, bitcast=True) << 23) + (127 << 23)).to(tl.float32, bitcast=True)
    e = fma(rest, EXP_6, EXP_5, INTERPRETED)
    e = fma(rest, e, EXP_4, INTERPRETED)
    e = fma(rest, e, EXP_3, INTERPRETED)
    e = fma(rest, e, EXP_2, INTERPRETED)
    e = fma(rest, e, 1.0, INTERPRETED)
    e = fma(rest, e, 1.0, INTERPRETED)
    z = tl.where(x > VANISHES, 0.0, e * power)
    p = fma(z, LOG1P_8, LOG1P_7, INTERPRETED)
    p = fma(z, p, LOG1P_6, INTERPRETED)
    p = fma(z, p, LOG1P_5, INTERPRETED)
    p = fma(z, p, LOG1P_4, INTERPRETED)
    p = fma(z, p, LOG1P_3, INTERPRETED)
    p = fma(z, p, LOG1P_2, INTERPRETED)
    p = fma(z, p, LOG1P_1, INTERPRETED)
    p = fma(z, p, LOG1P_0, INTERPRETED)
    return tl.sqrt_rn(tl.where(s > 0.0, s, 0.0) + z * p)


@triton.jit
def rank_of(b):
    """int32 in the order of fp32 b, NaN above all; b is never -0, for a is at least +0."""
    bits = b.to(tl.int32, bitcast=True)
    return tl.where(b != b, FIRST, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def router_topk_kernel(
    scores,
    bias,
    bias_vl,
    tokens,
    rows_not_padding,
    live_lengths,
    ids,
    weights,
    count,
    row_stride,
    image_token,
    scale,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    REQUEST: tl.constexpr,
    HAS_IMAGE: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_LIVE: tl.constexpr,
    ROWS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Routes of ROWS rows of scores [count, EXPERTS]."""
    WIDTH: tl.constexpr = triton.next_power_of_2(EXPERTS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.minimum(row, count - 1)
    if HAS_LIVE:
        request = source // REQUEST
        dead = source - request * REQUEST >= tl.load(live_lengths + request)
        source = tl.where(dead, request * REQUEST, source)
    first = scores + source.to(tl.int64) * row_stride
    expert = tl.arange(0, WIDTH)[None, :]
    real = expert < EXPERTS
    s = tl.load(first[:, None] + expert, mask=real, other=0.0)
    b = tl.load(bias + expert, mask=real, other=0.0)
    if HAS_IMAGE:
        image = tl.load(tokens + source) == image_token
        b = tl.where(image[:, None], tl.load(bias_vl + expert, mask=real, other=0.0), b)
    rank = tl.where(real, rank_of(sqrt_softplus(s, INTERPRETED) + b), GONE)

    slot = tl.arange(0, 8)[None, :]
    chosen = tl.zeros((ROWS, 8), dtype=tl.int32)
    for turn in tl.static_range(CHOSEN):
        best = tl.max(rank, axis=1)
        winner = tl.min(tl.where(rank == best[:, None], expert, WIDTH), axis=1)
        chosen = tl.where(slot == turn, winner[:, None], chosen)
        rank = tl.where(expert == winner[:, None], GONE, rank)

    used = slot < CHOSEN
    a = sqrt_softplus(tl.load(first[:, None] + chosen, mask=used, other=0.0), INTERPRETED)
    a = tl.where(used, a, 0.0)
    # Sums of two at a time: every layout adds in this one order.
    four = tl.sum(tl.reshape(a, (ROWS, 2, 4)), axis=1)
    two = tl.sum(tl.reshape(four, (ROWS, 2, 2)), axis=1)
    weight = tl.div_rn(a, tl.broadcast_to(tl.sum(two, axis=1)[:, None], (ROWS, 8))) * scale
    if HAS_PADDING:
        padding = row >= tl.load(rows_not_padding)
        chosen = tl.where(padding[:, None], -1, chosen)
        weight = tl.where(padding[:, None], 0.0, weight)
    place = row.to(tl.int64)[:, None] * CHOSEN + slot
    kept = used & (row < count)[:, None]
    tl.store(ids + place, chosen, mask=kept)
    tl.store(weights + place, weight, mask=kept)
