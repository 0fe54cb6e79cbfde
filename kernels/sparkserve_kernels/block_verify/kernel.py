"""Block verification over a real vocabulary (Sun et al., ICLR 2025).

Three launches. The masses sum max(w_i p_{i+1} - q_{i+1}, 0) in pieces of the vocabulary, for all
positions at once: the weights w need only the drafts' own probabilities, and each program computes
them anew. The race finds the accepted length and draws the correction in pieces, as the token with
the greatest residual over an exponential time of its own: no sum over the vocabulary, no
normalisation, and ranks that share seed and call draw alike. The verdict takes the best piece. It
reads 2 (g - 1) + 2 rows of the vocabulary where g drafts are live; every program of the race draws
its noise once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.block_verify import rules
from sparkserve_kernels.numerics import elementary
from sparkserve_kernels.numerics.kernel import fma

LEAST = tl.constexpr(rules.LEAST_DRAFT_PROBABILITY)
LN2 = tl.constexpr(elementary.LN2_HIGH)
NEAR_0 = tl.constexpr(elementary.LOG1P_NEAR[0])
NEAR_1 = tl.constexpr(elementary.LOG1P_NEAR[1])
NEAR_2 = tl.constexpr(elementary.LOG1P_NEAR[2])
NEAR_3 = tl.constexpr(elementary.LOG1P_NEAR[3])
NEAR_4 = tl.constexpr(elementary.LOG1P_NEAR[4])
NEAR_5 = tl.constexpr(elementary.LOG1P_NEAR[5])
NEAR_6 = tl.constexpr(elementary.LOG1P_NEAR[6])
NEAR_7 = tl.constexpr(elementary.LOG1P_NEAR[7])
NEAR_8 = tl.constexpr(elementary.LOG1P_NEAR[8])
NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Four words (uint32) of Philox4x32-10; c0 is a tensor, all others broadcast with it."""
    c1 = c1 + c0 * 0
    c2 = c2 + c0 * 0
    c3 = c3 + c0 * 0
    for _ in tl.static_range(10):
        first = c0.to(tl.uint64) * 0xD2511F53
        second = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (second >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = second.to(tl.uint32)
        c2 = (first >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = first.to(tl.uint32)
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def draw(noise, request, n, USE: tl.constexpr):
    """Four words of counters n (uint32) of one request; see ``noise.words_of``."""
    seed = tl.load(noise).to(tl.uint64, bitcast=True)
    call = tl.load(noise + 1).to(tl.uint64, bitcast=True)
    line = (2 * request + USE).to(tl.uint32)
    return philox(
        n,
        line,
        call.to(tl.uint32),
        (call >> 32).to(tl.uint32),
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
    )


@triton.jit
def exponential(word, INTERPRETED: tl.constexpr):
    """-log(1 - v) of v = (word + 1/2) / 2^32; see ``noise.exponential``."""
    v = fma(word.to(tl.float32), 2.3283064365386963e-10, 1.1641532182693481e-10, INTERPRETED)
    rest = (word ^ 0xFFFFFFFF).to(tl.float32)
    u = fma(rest, 2.3283064365386963e-10, 1.1641532182693481e-10, INTERPRETED)
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F400000) >> 23
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    near = word < 0x40000000
    f = tl.where(near, -v, mantissa - 1.0)
    p = fma(f, NEAR_8, NEAR_7, INTERPRETED)
    p = fma(f, p, NEAR_6, INTERPRETED)
    p = fma(f, p, NEAR_5, INTERPRETED)
    p = fma(f, p, NEAR_4, INTERPRETED)
    p = fma(f, p, NEAR_3, INTERPRETED)
    p = fma(f, p, NEAR_2, INTERPRETED)
    p = fma(f, p, NEAR_1, INTERPRETED)
    p = fma(f, p, NEAR_0, INTERPRETED)
    return -fma(tl.where(near, 0, exponent).to(tl.float32), LN2, f * p, INTERPRETED)


@triton.jit
def next_weight(weight, p_row, q_row, token, vocabulary, counts):
    """w_i from w_{i-1}, the rows of both distributions at the i-th draft, and whether it counts.

    Loads hang on no branch, so that those of all drafts are under way at once. A draft outside the
    vocabulary, or whose target probability is NaN, has the probability 0.
    """
    known = counts & (token >= 0) & (token < vocabulary)
    p = tl.load(p_row + token, mask=known, other=0.0)
    p = tl.where(p >= 0.0, p, 0.0)
    q = tl.maximum(tl.load(q_row + token, mask=known, other=1.0), LEAST)
    return tl.where(counts, tl.minimum(tl.div_rn(weight * p, q), 1.0), weight)


@triton.jit
def live_drafts(live_lengths, request, DRAFTS: tl.constexpr, HAS_LIVE: tl.constexpr):
    """How many drafts of a request count."""
    live = DRAFTS
    if HAS_LIVE:
        length = tl.load(live_lengths + request)
        live = tl.minimum(tl.maximum(length - 1, 0), DRAFTS).to(tl.int32)
    return live


@triton.jit
def mass_kernel(
    target,
    draft,
    tokens,
    live_lengths,
    greedy,
    masses,
    likeliest,
    vocabulary,
    target_stride: tl.int64,
    target_row: tl.int64,
    draft_stride: tl.int64,
    draft_row: tl.int64,
    DRAFTS: tl.constexpr,
    HAS_LIVE: tl.constexpr,
    HAS_GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Piece of one position's mass, or of its likeliest token; grid (requests, DRAFTS + 1, pieces).

    masses [requests, DRAFTS + 1, pieces] fp32 holds the mass, or the greatest probability beside
    its token in likeliest (int32).
    """
    request = tl.program_id(0)
    row = tl.program_id(1)
    piece = tl.program_id(2)
    live = live_drafts(live_lengths, request, DRAFTS, HAS_LIVE)
    is_greedy = False
    if HAS_GREEDY:
        is_greedy = tl.load(greedy + request) != 0
    column = piece * BLOCK + tl.arange(0, BLOCK)
    real = column < vocabulary
    p_first = target + request * target_stride
    q_first = draft + request * draft_stride
    place = (request * (DRAFTS + 1) + row) * tl.num_programs(2) + piece
    if is_greedy:
        if row <= live:
            p = tl.load(p_first + row * target_row + column, mask=real, other=0.0)
            p = tl.where(real, tl.where(p >= 0.0, p, 0.0), -1.0)
            best = tl.max(p, axis=0)
            tl.store(masses + place, best)
            tl.store(likeliest + place, tl.min(tl.where(p == best, column, NO_TOKEN), axis=0))
    elif (row > 0) & (row < live):
        p = tl.load(p_first + row * target_row + column, mask=real, other=0.0)
        q = tl.load(q_first + row * draft_row + column, mask=real, other=0.0)
        weight = tl.full((), 1.0, tl.float32)
        for i in tl.static_range(DRAFTS):
            token = tl.load(tokens + request * DRAFTS + i)
            p_own = p_first + i * target_row
            q_own = q_first + i * draft_row
            weight = next_weight(weight, p_own, q_own, token, vocabulary, i < row)
        tl.store(masses + place, tl.sum(tl.maximum(weight * p - q, 0.0), axis=0))


@triton.jit
def accepted_drafts(
    target,
    draft,
    tokens,
    noise,
    masses,
    request,
    live,
    vocabulary,
    pieces,
    DRAFTS: tl.constexpr,
    PIECES: tl.constexpr,
):
    """How many drafts of a request are accepted, and the weight w there."""
    p_row, target_row = target
    q_row, draft_row = draft
    every = tl.arange(0, PIECES)
    lane = tl.arange(0, 8)
    weights = tl.zeros((8,), dtype=tl.float32)
    chances = tl.zeros((8,), dtype=tl.float32)
    weight = tl.full((), 1.0, tl.float32)
    for i in tl.static_range(1, DRAFTS + 1):
        token = tl.load(tokens + i - 1)
        weight = next_weight(weight, p_row, q_row, token, vocabulary, i <= live)
        p_row += target_row
        q_row += draft_row
        part = tl.load(masses + i * pieces + every, mask=(every < pieces) & (i < live), other=0.0)
        mass = tl.sum(part, axis=0)
        whole = mass + (1.0 - weight)
        some = whole > 0.0
        inner = tl.where(some, tl.div_rn(mass, tl.where(some, whole, 1.0)), 1.0)
        chance = tl.where(i < live, inner, tl.where(i <= live, weight, 0.0))
        chances = tl.where(lane == i - 1, chance, chances)
        weights = tl.where(lane == i - 1, weight, weights)
    word, _, _, _ = draw(noise, request, lane.to(tl.uint32), USE=0)
    eta = (word >> 8).to(tl.float32) * 5.9604644775390625e-08
    accepted = tl.max(tl.where(eta < chances, lane + 1, 0), axis=0)
    kept = tl.sum(tl.where(lane == accepted - 1, weights, 0.0), axis=0)
    return accepted, tl.where(accepted == 0, 1.0, kept)


@triton.jit(do_not_specialize=["pieces"])
def race_kernel(
    target,
    draft,
    tokens,
    live_lengths,
    greedy,
    noise,
    masses,
    lengths,
    times,
    runners,
    vocabulary,
    target_stride: tl.int64,
    target_row: tl.int64,
    draft_stride: tl.int64,
    draft_row: tl.int64,
    pieces: tl.int32,
    DRAFTS: tl.constexpr,
    HAS_LIVE: tl.constexpr,
    HAS_GREEDY: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Accepted length of a request and one piece of its correction's race; grid (requests, parts).

    times [requests, 2, parts] fp32 and runners (int32) of that shape: the best score and its token
    by the residual, and by the target where no residual is left.
    """
    request = tl.program_id(0)
    part = tl.program_id(1)
    if HAS_GREEDY:  # noqa: SIM102 - the outer one is decided at compile time
        # Nested, because an argument that is no pointer here may not even be loaded from.
        if tl.load(greedy + request) != 0:
            return
    live = live_drafts(live_lengths, request, DRAFTS, HAS_LIVE)
    p_first = target + request * target_stride
    q_first = draft + request * draft_stride
    accepted, kept = accepted_drafts(
        (p_first, target_row),
        (q_first, draft_row),
        tokens + request * DRAFTS,
        noise,
        masses + request * (DRAFTS + 1) * pieces,
        request,
        live,
        vocabulary,
        pieces,
        DRAFTS,
        PIECES,
    )
    quarter = (vocabulary + 3) // 4
    n = part * BLOCK + tl.arange(0, BLOCK)
    w0, w1, w2, w3 = draw(noise, request, n.to(tl.uint32), USE=1)
    p_row = p_first + accepted * target_row
    q_row = q_first + tl.minimum(accepted, DRAFTS - 1) * draft_row
    has_draft = accepted < live
    best = -1.0
    runner = NO_TOKEN
    best_p = -1.0
    runner_p = NO_TOKEN
    for j in tl.static_range(4):
        word = w0
        if j == 1:
            word = w1
        elif j == 2:
            word = w2
        elif j == 3:
            word = w3
        token = j * quarter + n
        real = (n < quarter) & (token < vocabulary)
        p = tl.load(p_row + token, mask=real, other=0.0)
        q = tl.load(q_row + token, mask=real & has_draft, other=0.0)
        time = exponential(word, INTERPRETED)
        rest = kept * p - q
        left = tl.div_rn(tl.where(rest > 0.0, rest, 0.0), time)
        left = tl.where(real, left, -1.0)
        # NaN counts as 0, so that the winner is a token whatever the inputs are.
        whole = tl.where(p >= 0.0, tl.div_rn(p, time), 0.0)
        whole = tl.where(real, whole, -1.0)
        top = tl.max(left, axis=0)
        # Later quarters hold greater tokens: an equal score does not replace an earlier one.
        first = tl.min(tl.where(left == top, token, NO_TOKEN), axis=0)
        runner = tl.where(top > best, first, runner)
        best = tl.maximum(top, best)
        top = tl.max(whole, axis=0)
        first = tl.min(tl.where(whole == top, token, NO_TOKEN), axis=0)
        runner_p = tl.where(top > best_p, first, runner_p)
        best_p = tl.maximum(top, best_p)
    parts = tl.num_programs(1)
    place = request * 2 * parts + part
    tl.store(times + place, best)
    tl.store(runners + place, runner)
    tl.store(times + place + parts, best_p)
    tl.store(runners + place + parts, runner_p)
    if part == 0:
        tl.store(lengths + request, accepted)


@triton.jit
def greedy_verdict(
    tokens,
    masses,
    likeliest,
    request,
    live,
    pieces,
    DRAFTS: tl.constexpr,
    PIECES: tl.constexpr,
):
    """Accepted length and correction of a greedy request."""
    every = tl.arange(0, PIECES)
    going = tl.full((), 1, tl.int32)
    accepted = tl.full((), 0, tl.int32)
    correction = tl.full((), 0, tl.int32)
    for row in tl.static_range(DRAFTS + 1):
        counts = (going != 0) & (row <= live)
        place = (request * (DRAFTS + 1) + row) * pieces + every
        known = (every < pieces) & counts
        p = tl.load(masses + place, mask=known, other=-1.0)
        token = tl.load(likeliest + place, mask=known, other=NO_TOKEN)
        best = tl.min(tl.where(p == tl.max(p, axis=0), token, NO_TOKEN), axis=0)
        correction = tl.where(counts, best, correction)
        if row < DRAFTS:
            drafted = tl.load(tokens + request * DRAFTS + row)
            going = (counts & (row < live) & (drafted == best)).to(tl.int32)
            accepted += going
    return accepted, correction


@triton.jit
def race_winner(times, runners, request, parts, PARTS: tl.constexpr):
    """Token of the best score of a race; by the target where no residual was left."""
    every = tl.arange(0, PARTS)
    real = every < parts
    place = request * 2 * parts + every
    score = tl.load(times + place, mask=real, other=-1.0)
    by_target = (tl.max(score, axis=0) <= 0.0).to(tl.int32)
    place += by_target * parts
    score = tl.load(times + place, mask=real, other=-1.0)
    token = tl.load(runners + place, mask=real, other=NO_TOKEN)
    return tl.min(tl.where(score == tl.max(score, axis=0), token, NO_TOKEN), axis=0)


@triton.jit(do_not_specialize=["pieces", "parts"])
def verdict_kernel(
    tokens,
    live_lengths,
    greedy,
    masses,
    likeliest,
    lengths,
    times,
    runners,
    corrections,
    pieces: tl.int32,
    parts: tl.int32,
    DRAFTS: tl.constexpr,
    HAS_LIVE: tl.constexpr,
    HAS_GREEDY: tl.constexpr,
    PIECES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Take the best piece of a request; greedy ones also get their accepted length here."""
    request = tl.program_id(0)
    is_greedy = False
    if HAS_GREEDY:
        is_greedy = tl.load(greedy + request) != 0
    if is_greedy:
        live = live_drafts(live_lengths, request, DRAFTS, HAS_LIVE)
        accepted, token = greedy_verdict(
            tokens, masses, likeliest, request, live, pieces, DRAFTS, PIECES
        )
        tl.store(lengths + request, accepted)
        tl.store(corrections + request, token.to(tl.int64))
    else:
        winner = race_winner(times, runners, request, parts, PARTS)
        tl.store(corrections + request, winner.to(tl.int64))
