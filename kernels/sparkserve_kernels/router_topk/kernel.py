"""Route tokens: read a row of scores once, find its likely best roughly, and prove them exactly.

a = sqrt(log(1 + exp(s))) by the formula of ``numerics.elementary``; rank by a + bias.
Reads 4 bytes per expert and row and writes 8 per route. The exact formula
on all experts would bound large batches: some 900 instructions a row. So a row is first searched by
a short formula with a proven error, on keys that hold an expert's id in their low bits: a round is
one reduction inside a warp. The few found (two
more than are chosen) are then ranked by the exact formula; if as many as are chosen lie above all
that the others can be, the short formula has changed nothing. Else (a NaN, many near-ties: hardly
ever a row of random scores) the row is searched again by the exact formula alone.
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
ROUGH_0 = tl.constexpr(0.9999432563781738)
ROUGH_1 = tl.constexpr(-0.49697771668434143)
ROUGH_2 = tl.constexpr(0.30630046129226685)
ROUGH_3 = tl.constexpr(-0.1574263572692871)
ROUGH_4 = tl.constexpr(0.041346851736307144)
"""log(1 + z)/z for 0 <= z <= 1, by powers of z; error below 5.7e-5."""
MARGIN = tl.constexpr(2.0**-14)
"""Twice what the short formula's error can make of a part of a."""
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
def rank_of(b, INTERPRETED: tl.constexpr):
    """int32 in the order of fp32 b, NaN above all; b is a sum, and never -0 as a is at least +0."""
    bits = b.to(tl.int32, bitcast=True)
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if INTERPRETED:
        # A GPU's sum that is NaN has the bits of FIRST (PTX ISA, add); numpy's may have any.
        rank = tl.where(b != b, FIRST, rank)
    return rank


@triton.jit
def rough_keys(scores, bias, expert, EXPERTS: tl.constexpr, INTERPRETED: tl.constexpr):
    """Keys of some experts of one row, and a by the short formula.

    A key is the rank of a + bias with 511 - expert in its low 9 bits: keys differ, and none is
    above its rank with these bits set. a errs by less than 3e-5 of itself.
    """
    if EXPERTS % 128 == 0:
        s = tl.load(scores + expert)
        b = tl.load(bias + expert)
    else:
        s = tl.load(scores + expert, mask=expert < EXPERTS, other=0.0)
        b = tl.load(bias + expert, mask=expert < EXPERTS, other=0.0)
    z = tl.exp2(tl.abs(s) * MINUS_LOG2_E)
    p = tl.fma(z, ROUGH_4, ROUGH_3)
    p = tl.fma(z, p, ROUGH_2)
    p = tl.fma(z, p, ROUGH_1)
    p = tl.fma(z, p, ROUGH_0)
    a = tl.sqrt(tl.fma(z, p, tl.where(s > 0.0, s, 0.0)))
    key = (rank_of(a + b, INTERPRETED) & ~511) | (511 - expert)
    if EXPERTS % 128 != 0:
        key = tl.where(expert < EXPERTS, key, GONE)
        a = tl.where(expert < EXPERTS, a, 0.0)
    return key, a


@triton.jit
def likely_experts(
    scores,
    bias,
    slot,
    EXPERTS: tl.constexpr,
    FOUND: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """The FOUND experts of greatest keys in as many slots, and a limit to all others.

    Each of 128 lanes holds every 128th expert, sorted once; a round then looks at the lanes' heads
    alone and moves up the list whose head won. No a + bias of an expert that is not among them is
    above the limit; it is NaN where there are no others. A slot without an expert holds 511.
    """
    expert = tl.arange(0, 128)
    k0, most = rough_keys(scores, bias, expert, EXPERTS, INTERPRETED)
    k1 = tl.full((128,), GONE, tl.int32)
    k2 = k1
    k3 = k1
    if EXPERTS > 128:
        k1, a = rough_keys(scores, bias, expert + 128, EXPERTS, INTERPRETED)
        most = tl.maximum(most, a)
        k0, k1 = tl.maximum(k0, k1), tl.minimum(k0, k1)
    if EXPERTS > 256:
        k2, a = rough_keys(scores, bias, expert + 256, EXPERTS, INTERPRETED)
        most = tl.maximum(most, a)
        k1, k2 = tl.maximum(k1, k2), tl.minimum(k1, k2)
        k0, k1 = tl.maximum(k0, k1), tl.minimum(k0, k1)
    if EXPERTS > 384:
        k3, a = rough_keys(scores, bias, expert + 384, EXPERTS, INTERPRETED)
        most = tl.maximum(most, a)
        k2, k3 = tl.maximum(k2, k3), tl.minimum(k2, k3)
        k1, k2 = tl.maximum(k1, k2), tl.minimum(k1, k2)
        k0, k1 = tl.maximum(k0, k1), tl.minimum(k0, k1)
    found = tl.full((32,), 511, dtype=tl.int32)
    for turn in tl.static_range(FOUND):
        best = tl.max(k0, axis=0)
        found = tl.where(slot == turn, 511 - (best & 511), found)
        won = k0 == best
        k0 = tl.where(won, k1, k0)
        k1 = tl.where(won, k2, k1)
        k2 = tl.where(won, k3, k2)
        k3 = tl.where(won, GONE, k3)
    # As integers: a is not negative, and their maximum is one instruction.
    largest = tl.max(most.to(tl.int32, bitcast=True), axis=0).to(tl.float32, bitcast=True)
    rank = tl.max(k0, axis=0) | 511
    highest = (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return found, highest + (largest + tl.abs(highest)) * MARGIN


@triton.jit
def best_of_found(
    scores,
    bias,
    found,
    limit,
    slot,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    FOUND: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """The best of the experts found by the exact formula in CHOSEN slots, their a, and a proof.

    The proof is how many of them are above the limit; of NaN none is.
    """
    real = (slot < FOUND) & (found < EXPERTS)
    a = sqrt_softplus(tl.load(scores + found, mask=real, other=0.0), INTERPRETED)
    b = a + tl.load(bias + found, mask=real, other=0.0)
    above = tl.sum((real & (b > limit)).to(tl.int32), axis=0)
    rank = tl.where(real, rank_of(b, INTERPRETED), GONE)
    bits = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    chosen = tl.zeros((32,), dtype=tl.int32)
    chosen_bits = tl.zeros((32,), dtype=tl.int32)
    for turn in tl.static_range(CHOSEN):
        winner = tl.min(tl.where(rank == tl.max(rank, axis=0), found, 512), axis=0)
        won = found == winner
        # A maximum of integers is one instruction; a is not negative.
        own = tl.max(tl.where(won, bits, 0), axis=0)
        chosen = tl.where(slot == turn, winner, chosen)
        chosen_bits = tl.where(slot == turn, own, chosen_bits)
        rank = tl.where(won, GONE, rank)
    return chosen, chosen_bits.to(tl.float32, bitcast=True), above


@triton.jit
def sum_of_slots(a):
    """Sum of 32 slots, two at a time: every layout adds in this one order."""
    a = tl.sum(tl.reshape(a, (2, 16)), axis=0)
    a = tl.sum(tl.reshape(a, (2, 8)), axis=0)
    a = tl.sum(tl.reshape(a, (2, 4)), axis=0)
    a = tl.sum(tl.reshape(a, (2, 2)), axis=0)
    return tl.sum(a, axis=0)


@triton.jit
def in_order(rank, expert, later_rank, later_expert):
    """Two ranks in descending order with their experts; equal ones stay as they are."""
    swap = later_rank > rank
    return (
        tl.where(swap, later_rank, rank),
        tl.where(swap, later_expert, expert),
        tl.where(swap, rank, later_rank),
        tl.where(swap, expert, later_expert),
    )


@triton.jit
def ranks_of(scores, bias, expert, EXPERTS: tl.constexpr, INTERPRETED: tl.constexpr):
    """Ranks of some experts of one row; GONE past the last expert."""
    real = expert < EXPERTS
    s = tl.load(scores + expert, mask=real, other=0.0)
    b = tl.load(bias + expert, mask=real, other=0.0)
    return tl.where(real, rank_of(sqrt_softplus(s, INTERPRETED) + b, INTERPRETED), GONE)


@triton.jit
def best_experts(
    scores,
    bias,
    slot,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Experts of one row by the exact formula, best first, in CHOSEN slots."""
    e0 = tl.arange(0, 128)
    e1 = e0 + 128
    e2 = e0 + 256
    e3 = e0 + 384
    r0 = ranks_of(scores, bias, e0, EXPERTS, INTERPRETED)
    r1 = tl.full((128,), GONE, tl.int32)
    r2 = r1
    r3 = r1
    if EXPERTS > 128:
        r1 = ranks_of(scores, bias, e1, EXPERTS, INTERPRETED)
        r0, e0, r1, e1 = in_order(r0, e0, r1, e1)
    if EXPERTS > 256:
        r2 = ranks_of(scores, bias, e2, EXPERTS, INTERPRETED)
        r1, e1, r2, e2 = in_order(r1, e1, r2, e2)
        r0, e0, r1, e1 = in_order(r0, e0, r1, e1)
    if EXPERTS > 384:
        r3 = ranks_of(scores, bias, e3, EXPERTS, INTERPRETED)
        r2, e2, r3, e3 = in_order(r2, e2, r3, e3)
        r1, e1, r2, e2 = in_order(r1, e1, r2, e2)
        r0, e0, r1, e1 = in_order(r0, e0, r1, e1)
    chosen = tl.zeros((32,), dtype=tl.int32)
    for turn in tl.static_range(CHOSEN):
        winner = tl.min(tl.where(r0 == tl.max(r0, axis=0), e0, 512), axis=0)
        chosen = tl.where(slot == turn, winner, chosen)
        won = e0 == winner
        r0 = tl.where(won, r1, r0)
        e0 = tl.where(won, e1, e0)
        r1 = tl.where(won, r2, r1)
        e1 = tl.where(won, e2, e1)
        r2 = tl.where(won, r3, r2)
        e2 = tl.where(won, e3, e2)
        r3 = tl.where(won, GONE, r3)
    return chosen


@triton.jit(do_not_specialize=["count", "image_token"])
def router_topk_kernel(
    scores,
    bias,
    bias_vl,
    tokens,
    rows_not_padding,
    live_lengths,
    ids,
    weights,
    count: tl.int32,
    row_stride,
    image_token: tl.int32,
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
    """Routes of ROWS rows of scores [count, EXPERTS]; one warp."""
    FOUND: tl.constexpr = CHOSEN + 2
    slot = tl.arange(0, 32)
    used = slot < CHOSEN
    for r in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + r
        source = tl.minimum(row, count - 1)
        if HAS_LIVE:
            request = source // REQUEST
            dead = source - request * REQUEST >= tl.load(live_lengths + request)
            source = tl.where(dead, request * REQUEST, source)
        own_bias = bias
        if HAS_IMAGE:
            own_bias = tl.where(tl.load(tokens + source) == image_token, bias_vl, bias)
        first = scores + source.to(tl.int64) * row_stride
        found, limit = likely_experts(first, own_bias, slot, EXPERTS, FOUND, INTERPRETED)
        chosen, a, above = best_of_found(
            first, own_bias, found, limit, slot, EXPERTS, CHOSEN, FOUND, INTERPRETED
        )
        if above < CHOSEN:
            chosen = best_experts(first, own_bias, slot, EXPERTS, CHOSEN, INTERPRETED)
            a = sqrt_softplus(tl.load(first + chosen, mask=used, other=0.0), INTERPRETED)
            a = tl.where(used, a, 0.0)
        weight = tl.div_rn(a, tl.broadcast_to(sum_of_slots(a), (32,))) * scale
        if HAS_PADDING:
            padding = row >= tl.load(rows_not_padding)
            chosen = tl.where(padding, -1, chosen)
            weight = tl.where(padding, 0.0, weight)
        place = row.to(tl.int64) * CHOSEN + slot
        kept = used & (row < count)
        tl.store(ids + place, chosen, mask=kept)
        tl.store(weights + place, weight, mask=kept)
