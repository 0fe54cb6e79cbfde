"""Selection of the largest scores of a row in a total order, by one walk over them.

Order: the larger score first, of equal ones the lower position. NaN and -inf are never selected;
-0 equals +0. A program walks over one segment of one row and appends every score above its
threshold, with its position, to a buffer; when the buffer could overflow it keeps the K best and
raises the threshold to the K-th. Positions only grow along a walk, and keeping never reorders,
so that the lower position of equal scores is the earlier one, a later equal score can never
displace a selected one, and the result comes out sorted by position without any sort.

The K-th score is found by at most 32 counts, one per bit of an integer with the floats' order.
Whatever the segments, chunks and merges, the result is that of one stable sort of the whole row.

Bytes: 4 per score read once, 8 per survivor. Of scores in random order about
K * (1 + ln(length / K)) survive, so that the walk is bound by the read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.index_scores.kernel import request_of

NONE = tl.constexpr(-1)


@triton.jit
def _rank_of(x):
    """uint32 with the order of fp32 (no NaN, no -0)."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _of_rank(rank):
    """fp32 of a rank."""
    bits = tl.where(rank >= 0x80000000, rank ^ 0x80000000, rank ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _clean(x):
    """NaN becomes -inf, -0 becomes +0."""
    x = tl.where(x == x, x, -float("inf"))
    return tl.where(x == 0.0, 0.0, x)


@triton.jit
def _threshold(values, count, K: tl.constexpr, CAPACITY: tl.constexpr):
    """Rank of the K-th best of a buffer's first count entries, of which there are at least K.

    Bits that all ranks share need no count, and none is needed once exactly K ranks are left.
    """
    at = tl.arange(0, CAPACITY)
    rank = _rank_of(tl.load(values + at, mask=at < count, other=-float("inf")))
    lowest = tl.min(tl.where(at < count, rank, 0xFFFFFFFF), axis=0)
    differs = lowest ^ tl.max(rank, axis=0)
    bit = tl.full((), 0x80000000, tl.uint32)
    while (bit > 0) & (bit > differs):
        bit = bit >> 1
    kth = tl.where(bit > 0, lowest - (lowest & (bit | (bit - 1))), lowest)
    left = count
    while (bit > 0) & (left != K):
        trial = kth | bit
        above = tl.sum((rank >= trial).to(tl.int32), axis=0)
        kth = tl.where(above >= K, trial, kth)
        left = tl.where(above >= K, above, left)
        bit = bit >> 1
    return tl.min(tl.where((rank >= kth) & (at < count), rank, 0xFFFFFFFF), axis=0)


@triton.jit
def _keep_best(
    values, positions, count, to_values, to_positions,
    K: tl.constexpr, CAPACITY: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Copy the K best of a buffer's first count entries in their order, perhaps in place.

    Gives how many there are and the threshold above which a later score must lie. Entries move in
    steps, because a thread that held all of its part at once would leave no room for others.
    """
    tl.debug_barrier()
    kth = tl.zeros((), dtype=tl.uint32)
    threshold = tl.full((), -float("inf"), tl.float32)
    if count >= K:
        kth = _threshold(values, count, K, CAPACITY)
        threshold = _of_rank(kth)
    above = 0
    if count > K:
        for begin in range(0, count, STEP):
            at = begin + tl.arange(0, STEP)
            rank = _rank_of(tl.load(values + at, mask=at < count, other=-float("inf")))
            above += tl.sum((rank > kth).to(tl.int32), axis=0)
    room = K - above
    kept = 0
    for begin in range(0, count, STEP):
        at = begin + tl.arange(0, STEP)
        x = tl.load(values + at, mask=at < count, other=-float("inf"))
        position = tl.load(positions + at, mask=at < count, other=NONE)
        rank = _rank_of(x)
        equal = ((rank == kth) & (at < count)).to(tl.int32)
        stays = ((rank > kth) & (at < count)) | ((equal > 0) & (tl.cumsum(equal, axis=0) <= room))
        one = stays.to(tl.int32)
        to = kept + tl.cumsum(one, axis=0) - 1
        tl.debug_barrier()
        tl.store(to_values + to, x, mask=stays)
        tl.store(to_positions + to, position, mask=stays)
        room -= tl.sum(equal, axis=0)
        kept += tl.sum(one, axis=0)
    tl.debug_barrier()
    return kept, threshold


@triton.jit
def _chunk(
    scores, begin, end, columns, first, bound, GROUP: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Scores of the elements [begin, begin + CHUNK) of a row.

    With GROUP > 1 an element is the largest score of GROUP neighbouring keys, and +inf for the
    one that holds the newest visible key.
    """
    at = begin + tl.arange(0, CHUNK)
    if GROUP == 1:
        x = _clean(tl.load(scores + at, mask=at < end, other=-float("inf")))
    else:
        inner = tl.expand_dims(at, 1) * GROUP + tl.expand_dims(tl.arange(0, GROUP), 0)
        mask = (tl.expand_dims(at, 1) < end) & (inner < columns)
        mask &= inner + first * GROUP < bound
        x = _clean(tl.load(scores + inner, mask=mask, other=-float("inf")))
        x = tl.max(x, axis=1)
        x = tl.where((at < end) & (first + at == (bound - 1) // GROUP), float("inf"), x)
    return x


@triton.jit
def select_kernel(
    scores, listed, visible, work_values, work_positions, best_values, best_positions,
    score_stride, listed_stride, first, columns, segment,
    K: tl.constexpr, CAPACITY: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr, LISTED: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """The K best of each segment of each row; grid (rows, segments).

    scores: [rows, columns] fp32, GROUP of them an element; element i of a row stands for position
    first + i, or, with LISTED = n, for listed[row, i // n] * n + i % n, whose scores already are
    -inf where nothing is visible. visible: [rows] int32, bounds positions * GROUP without LISTED.
    work_*: [rows, segments, CAPACITY] scratch, CAPACITY >= K + CHUNK. best_*: [rows, segments, K]
    fp32 and int32, positions ascending, padded with -inf and -1; with CARRY they are also what
    earlier elements left, whose positions are all lower.
    """
    row = tl.program_id(0).to(tl.int64)
    part = row * tl.num_programs(1) + tl.program_id(1)
    scores += row * score_stride
    work_values += part * CAPACITY
    work_positions += part * CAPACITY
    best_values += part * K
    best_positions += part * K
    begin = tl.program_id(1) * segment
    end = tl.minimum(begin + segment, tl.cdiv(columns, GROUP))
    bound = 0
    if LISTED == 0:
        bound = tl.load(visible + row)
        end = tl.minimum(end, tl.cdiv(bound, GROUP) - first)
    else:
        listed += row * listed_stride
    number = tl.arange(0, K)
    count = 0
    threshold = tl.full((), -float("inf"), tl.float32)
    if CARRY:
        held = tl.load(best_values + number)
        tl.store(work_values + number, held)
        tl.store(work_positions + number, tl.load(best_positions + number))
        count = tl.sum((held > -float("inf")).to(tl.int32), axis=0)
        threshold = tl.min(held, axis=0)
    upcoming = _chunk(scores, begin, end, columns, first, bound, GROUP, CHUNK)
    for start in range(begin, end, CHUNK):
        x = upcoming
        upcoming = _chunk(scores, start + CHUNK, end, columns, first, bound, GROUP, CHUNK)
        found = tl.sum((x > threshold).to(tl.int32), axis=0)
        if found > 0:
            if count + found > CAPACITY:
                count, threshold = _keep_best(
                    work_values, work_positions, count, work_values, work_positions,
                    K, CAPACITY, STEP,
                )  # fmt: skip
            survives = x > threshold
            at = start + tl.arange(0, CHUNK)
            if LISTED == 0:
                position = first + at
            else:
                position = tl.load(listed + at // LISTED, mask=survives, other=0)
                position = position * LISTED + at % LISTED
            to = count + tl.cumsum(survives.to(tl.int32), axis=0) - 1
            tl.store(work_values + to, x, mask=survives)
            tl.store(work_positions + to, position, mask=survives)
            count += tl.sum(survives.to(tl.int32), axis=0)
    count, threshold = _keep_best(
        work_values, work_positions, count, best_values, best_positions, K, CAPACITY, STEP
    )
    tl.store(best_values + number, -float("inf"), mask=number >= count)
    tl.store(best_positions + number, NONE, mask=number >= count)


@triton.jit
def slots_kernel(
    positions, row_starts, requests_of_pool, request_to_token, slots, position_stride,
    token_stride, row_begin, requests, ratio,
    REQUESTS: tl.constexpr, RAGGED: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slots request_to_token[pool row of the request, position * ratio] // ratio; grid (rows,).

    positions, slots: [rows, K] int32, -1 stays -1.
    """
    row = tl.program_id(0)
    request = 0
    if RAGGED:
        request = request_of(row + row_begin, row_starts, requests, REQUESTS)
    line = tl.load(requests_of_pool + request).to(tl.int64) * token_stride
    number = tl.arange(0, BLOCK)
    at = row.to(tl.int64) * position_stride + number
    position = tl.load(positions + at, mask=number < K, other=NONE)
    there = position >= 0
    token = tl.load(request_to_token + line + position.to(tl.int64) * ratio, mask=there, other=0)
    slot = tl.where(there, token // ratio, NONE)
    tl.store(slots + row.to(tl.int64) * K + number, slot.to(tl.int32), mask=number < K)
