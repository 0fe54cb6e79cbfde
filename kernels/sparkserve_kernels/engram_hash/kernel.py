"""Hash n-grams to Engram rows, and move on the histories they look back at.

For the window c_0, c_1, ... of compressed ids (the token itself first)::

    r_n = c_0 * m_0  XOR  c_1 * m_1  XOR ...  XOR c_n * m_n          int64, wrapping around
    row of head h of order n+1 = r_n mod prime[n, h] + first row of that column

All of it is integer arithmetic. Nothing here is large: six tokens are 288 ids, so a program takes
TOKENS tokens of one layer, and its time is that of a few dependent loads.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _start_and_end(ends, requests, at, TOKENS: tl.constexpr, CHUNK: tl.constexpr):
    """Run index and first token of the run that holds each token of a ragged batch."""
    run = tl.zeros((TOKENS,), dtype=tl.int32)
    start = tl.zeros((TOKENS,), dtype=tl.int64)
    for first in range(0, requests, CHUNK):
        request = first + tl.arange(0, CHUNK)
        real = request < requests
        end = tl.load(ends + request, mask=real, other=0).to(tl.int64)
        before = real[None, :] & (end[None, :] <= at[:, None])
        run += tl.sum(before.to(tl.int32), axis=1)
        start = tl.maximum(start, tl.max(tl.where(before, end[None, :], 0), axis=1))
    return run, start


@triton.jit(do_not_specialize=["count", "requests", "block", "known_tokens"])
def hash_kernel(
    tokens,
    positions,
    before,
    rows,
    ends,
    token_map,
    multipliers,
    primes,
    first_rows,
    out,
    count: tl.int32,
    requests: tl.int32,
    block: tl.int32,
    known_tokens: tl.int32,
    pad_id: tl.int64,
    image_token: tl.int64,
    NGRAM: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    RAGGED: tl.constexpr,
    BY_ROW: tl.constexpr,
    VISION: tl.constexpr,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program hashes TOKENS tokens for one layer."""
    layer = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    real = at < count
    if RAGGED:
        run, start = _start_and_end(ends, requests, at, TOKENS, CHUNK)
    else:
        run = (at // block).to(tl.int32)
        start = at - at % block
    in_run = real & (run < requests)
    offset = at - start
    position = tl.load(positions + at, mask=real, other=0).to(tl.int64)
    row = run.to(tl.int64)
    if BY_ROW:
        row = tl.load(rows + run, mask=in_run, other=0).to(tl.int64)

    head = tl.arange(0, HEADS_PADDED)
    is_head = head < HEADS
    blocked = in_run == 0
    mixed = tl.zeros((TOKENS,), dtype=tl.int64)
    for distance in tl.static_range(NGRAM):
        in_batch = offset >= distance
        token = tl.load(tokens + at - distance, mask=in_run & in_batch, other=0).to(tl.int64)
        column = NGRAM - 1 - (distance - offset)
        older = tl.load(
            before + row * (NGRAM - 1) + column, mask=in_run & (in_batch == 0), other=0
        ).to(tl.int64)
        token = tl.where(in_batch, token, older)
        blocked = blocked | (position < distance)
        if VISION:
            blocked = blocked | (token == image_token)
        # Padding is below the map and media are above it; no other id may be looked up either.
        blocked = blocked | (token < 0) | (token >= known_tokens)
        known = tl.load(token_map + token, mask=blocked == 0, other=0).to(tl.int64)
        compressed = tl.where(blocked, pad_id, known)
        mixed = mixed ^ (compressed * tl.load(multipliers + layer * NGRAM + distance))
        if distance > 0:
            place = (layer * (NGRAM - 1) + distance - 1) * HEADS + head
            prime = tl.load(primes + place, mask=is_head, other=1)
            rest = mixed[:, None] % prime[None, :]
            # The remainder has the dividend's sign; a row has none.
            rest = tl.where(rest < 0, rest + prime[None, :], rest)
            first_row = tl.load(first_rows + place, mask=is_head, other=0)
            layers = tl.num_programs(1)
            target = out + (at * layers + layer) * ((NGRAM - 1) * HEADS) + (distance - 1) * HEADS
            tl.store(
                target[:, None] + head[None, :],
                rest + first_row[None, :],
                mask=real[:, None] & is_head[None, :],
            )


@triton.jit(do_not_specialize=["requests", "block"])
def advance_kernel(
    history,
    slots,
    tokens,
    before,
    rows,
    ends,
    accepted,
    places,
    requests: tl.int32,
    block: tl.int32,
    media_start: tl.int64,
    media_as: tl.int64,
    LOOKBACK: tl.constexpr,
    PADDED: tl.constexpr,
    RAGGED: tl.constexpr,
    BY_ROW: tl.constexpr,
    PARTLY: tl.constexpr,
    PLACED: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    """One program moves on the histories of REQUESTS requests."""
    request = tl.program_id(0) * REQUESTS + tl.arange(0, REQUESTS)
    real = request < requests
    if RAGGED:
        end = tl.load(ends + request, mask=real, other=0).to(tl.int64)
        start = tl.load(ends + request - 1, mask=real & (request > 0), other=0).to(tl.int64)
    else:
        start = request.to(tl.int64) * block
        end = start + block
    count = end - start
    if PARTLY:
        count = tl.load(accepted + request, mask=real, other=0).to(tl.int64)
    moves = real & (count > 0)
    if PLACED:
        moves = moves & (tl.load(places + end - 1, mask=moves, other=0) != 0)
    row = request.to(tl.int64)
    if BY_ROW:
        row = tl.load(rows + request, mask=real, other=0).to(tl.int64)
    slot = tl.load(slots + request, mask=real, other=0).to(tl.int64)

    column = tl.arange(0, PADDED)[None, :]
    is_column = moves[:, None] & (column < LOOKBACK)
    source = count[:, None] + column
    old = source < LOOKBACK
    kept = tl.load(before + row[:, None] * LOOKBACK + source, mask=is_column & old, other=0)
    fresh = tl.load(
        tokens + start[:, None] + source - LOOKBACK, mask=is_column & (old == 0), other=0
    )
    token = tl.where(old, kept.to(tl.int64), fresh.to(tl.int64))
    token = tl.where(token >= media_start, media_as, token)
    tl.store(history + slot[:, None] * LOOKBACK + column, token.to(tl.int32), mask=is_column)
