"""Scores of FP4 queries against FP4 keys.

    score[t, n] = sum over h of relu(q[t, h] . k[n]) * w[t, h]

A program holds one tile of keys and walks over the rows: the keys, which are what memory holds
most of, are read and decoded once per program. Heads are batched as columns of one product,
[keys, 128] x [128, rows * 32], so that a thread owns eight of a row's 32 heads at one key and the
sum over heads is nearly free of exchanges between threads.

Bytes: 68 per key and row split; flops: 2 * rows * keys * 32 * 128. Products of e2m1 values with
power-of-two scales are exact, and so is their sum in fp32 while the products of the groups' scales
lie within 2^9 of each other (128 * 36 / 0.25 * 2^9 < 2^24); the sum over heads follows one fixed
tree of pairs. The result is then independent of tile, path and GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import (
    dot,
    e2m1_to_e4m3_bits,
    e8m0_value,
)

HEADS = tl.constexpr(32)
DIM = tl.constexpr(128)
GROUPS = tl.constexpr(4)
PAYLOAD = tl.constexpr(64)


@triton.jit
def _codes(payload, ROWS: tl.constexpr):
    """[ROWS, 64] bytes -> [ROWS, 128] e2m1 codes; element 2i is the low nibble of byte i."""
    return tl.reshape(tl.join(payload & 0xF, payload >> 4), (ROWS, DIM))


@triton.jit
def _operand(payload, scales, SCALED: tl.constexpr, ROWS: tl.constexpr):
    """Operand of a product, [ROWS, 128]: e4m3 without the scales, or bf16 with them folded in.

    Both are exact.
    """
    if SCALED:
        operand = e2m1_to_e4m3_bits(_codes(payload, ROWS)).to(tl.float8e4nv, bitcast=True)
    else:
        codes = _codes(payload, ROWS).to(tl.uint16)
        # The code's three low bits at the top of an fp16's exponent are its value times 2^-14.
        small = (((codes & 7) << 9) | ((codes & 8) << 12)).to(tl.float16, bitcast=True)
        values = tl.reshape(small.to(tl.float32) * 16384.0, (ROWS, GROUPS, 32))
        values *= tl.expand_dims(e8m0_value(scales), 2)
        bits = tl.reshape(values, (ROWS, DIM)).to(tl.uint32, bitcast=True)
        operand = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return operand


@triton.jit
def _over_heads(x, KEYS: tl.constexpr, ROWS: tl.constexpr):
    """[KEYS, 4 * ROWS * 8] -> [KEYS, ROWS]: the fixed tree, by bits 4, 3, 0, 2, 1 of the head.

    A column is (head // 8, row, head % 8). Warps share out the columns in runs of 8, so that they
    differ in the row and never in the head; bits 4, 3 and 0 lie within a thread, 2 and 1 within
    four lanes.
    """
    x = tl.reshape(x, (KEYS, 2, 2, ROWS, 2, 2, 2))
    x = tl.sum(x, axis=1)
    x = tl.sum(x, axis=1)
    x = tl.sum(x, axis=4)
    x = tl.sum(x, axis=2)
    return tl.sum(x, axis=2)


@triton.jit
def _products(k, k_scales, q, q_scales, SCALED: tl.constexpr, INTERPRETED: tl.constexpr):
    """Keys @ queries^T in fp32."""
    if SCALED:
        x = tl.dot_scaled(k, k_scales, "e4m3", tl.trans(q), q_scales, "e4m3")
    else:
        zeros = tl.zeros((k.shape[0], q.shape[0]), dtype=tl.float32)
        x = dot(k, tl.trans(q), zeros, INTERPRETED)
    return x


@triton.jit
def _relu(x):
    """The positive part; NaN stays NaN, so that a broken record is never selected."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _key_tile(
    n, known, keys, key_scales, table, key_stride, key_scale_stride,
    PAGED: tl.constexpr, SLOTS: tl.constexpr, SCALED: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Operand and scale bytes of the keys n; table: the page table's row of their request.

    keys, key_scales: payload and scales of the first record, or of the first slot of page 0;
    strides from record to record, or from page to page.
    """
    if PAGED:
        page = tl.load(table + n // SLOTS, mask=known, other=0).to(tl.int64)
        payload_at = keys + page * key_stride + n % SLOTS * PAYLOAD
        scales_at = key_scales + page * key_scale_stride + n % SLOTS * GROUPS
    else:
        payload_at = keys + n.to(tl.int64) * key_stride
        scales_at = key_scales + n.to(tl.int64) * key_scale_stride
    mask = tl.expand_dims(known, 1)
    byte = tl.expand_dims(tl.arange(0, PAYLOAD), 0)
    group = tl.expand_dims(tl.arange(0, GROUPS), 0)
    payload = tl.load(tl.expand_dims(payload_at, 1) + byte, mask=mask, other=0)
    scales = tl.load(tl.expand_dims(scales_at, 1) + group, mask=mask, other=127)
    return _operand(payload, scales, SCALED, BK), scales


@triton.jit
def _query_tile(
    queries, query_scales, flat, live, query_stride, scale_stride,
    WIDE: tl.constexpr, SCALED: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Operand and scale bytes of the vectors (row, head) of the flat numbers row * 32 + head."""
    mask = tl.expand_dims(live, 1)
    group = tl.expand_dims(tl.arange(0, GROUPS), 0)
    wide = tl.expand_dims(flat.to(tl.int64), 1)
    if WIDE and not SCALED:
        scales = tl.full((N, GROUPS), 127, tl.uint8)
    else:
        scales = tl.load(query_scales + wide * scale_stride + group, mask=mask, other=127)
    if WIDE:
        at = wide * DIM + tl.expand_dims(tl.arange(0, DIM), 0)
        q = tl.load(queries + at, mask=mask, other=0.0)
    else:
        byte = tl.expand_dims(tl.arange(0, PAYLOAD), 0)
        payload = tl.load(queries + wide * query_stride + byte, mask=mask, other=0)
        q = _operand(payload, scales, SCALED, N)
    return q, scales


@triton.jit
def widen_kernel(
    queries, query_scales, wide, vectors, query_stride, scale_stride,
    SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Decode query vectors once for all key tiles: e4m3 bits, or bf16 with the scales folded in.

    queries: [vectors, 64] uint8; query_scales: [vectors, 4] uint8; wide: [vectors, 128].
    """
    flat = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = flat < vectors
    q, _ = _query_tile(
        queries, query_scales, flat, live, query_stride, scale_stride, False, SCALED, BLOCK
    )
    at = tl.expand_dims(flat.to(tl.int64), 1) * DIM + tl.expand_dims(tl.arange(0, DIM), 0)
    tl.store(wide + at, q, mask=tl.expand_dims(live, 1))


@triton.jit
def scores_kernel(
    queries, query_scales, weights, keys, key_scales, table, row_starts, visible, scores,
    query_stride, scale_stride, weight_stride, key_stride, key_scale_stride, table_stride,
    score_stride, row_begin, rows, rows_per_split, first_key, key_count,
    RAGGED: tl.constexpr, PAGED: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr,
    SCALED: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, SCAN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Scores of one key tile against the rows of one request; grid (key tiles, requests, splits).

    Row 0 of all row tensors is row row_begin of row_starts. scores: [rows, key_count] fp32, column
    0 is key first_key. Written are the rows between the first and the last that sees any key of
    the tile, -inf where the key is not visible; everything else is left as it was.
    """
    N: tl.constexpr = BT * HEADS
    request = tl.program_id(1)
    low = 0
    high = rows
    if RAGGED:
        low = tl.maximum(low, tl.load(row_starts + request) - row_begin)
        high = tl.minimum(high, tl.load(row_starts + request + 1) - row_begin)
    low = tl.minimum(low + tl.program_id(2) * rows_per_split, high)
    high = tl.minimum(high, low + rows_per_split)
    column = tl.program_id(0) * BK
    first = high
    last = low
    reach = 0
    for begin in range(low, high, SCAN):
        row = begin + tl.arange(0, SCAN)
        bound = tl.load(visible + row, mask=row < high, other=0)
        reach = tl.maximum(reach, tl.max(bound, axis=0))
        sees = bound > first_key + column
        first = tl.minimum(first, tl.min(tl.where(sees, row, high), axis=0))
        last = tl.maximum(last, tl.max(tl.where(sees, row + 1, low), axis=0))
    if first < last:
        columns = column + tl.arange(0, BK)
        n = first_key + columns
        inside = columns < key_count
        if PAGED:
            table += request.to(tl.int64) * table_stride
        # Beyond what any row sees, records may be unwritten and the table may hold no page.
        known = inside & (n < reach)
        k, k_scales = _key_tile(
            n, known, keys, key_scales, table, key_stride, key_scale_stride,
            PAGED, SLOTS, SCALED, BK,
        )  # fmt: skip
        vector = tl.arange(0, N)
        head = vector // (8 * BT) * 8 + vector % 8
        for begin in range(first, last, BT):
            line = begin + vector // 8 % BT
            live = line < last
            q, q_scales = _query_tile(
                queries,
                query_scales,
                line * HEADS + head,
                live,
                query_stride,
                scale_stride,
                WIDE,
                SCALED,
                N,
            )
            at = line.to(tl.int64) * weight_stride + head
            w = tl.load(weights + at, mask=live, other=0.0).to(tl.float32)
            x = _products(k, k_scales, q, q_scales, SCALED, INTERPRETED)
            x = _relu(x) * tl.expand_dims(w, 0)
            row = begin + tl.arange(0, BT)
            bound = tl.load(visible + row, mask=row < last, other=0)
            x = tl.where(
                tl.expand_dims(n, 1) < tl.expand_dims(bound, 0),
                _over_heads(x, BK, BT),
                -float("inf"),
            )
            out = row.to(tl.int64) * score_stride
            mask = tl.expand_dims(inside, 1) & tl.expand_dims(row < last, 0)
            tl.store(scores + tl.expand_dims(out, 0) + tl.expand_dims(columns, 1), x, mask=mask)


@triton.jit
def request_of(row, row_starts, requests, REQUESTS: tl.constexpr):
    """Request that a row belongs to: how many of the requests end at or before it."""
    number = tl.arange(0, REQUESTS)
    ends = tl.load(row_starts + 1 + number, mask=number < requests, other=2147483647)
    return tl.sum((ends <= row).to(tl.int32), axis=0)


@triton.jit
def candidate_scores_kernel(
    queries, query_scales, weights, keys, key_scales, table, row_starts, visible, blocks, scores,
    query_stride, scale_stride, weight_stride, key_stride, key_scale_stride, table_stride,
    block_stride, score_stride, row_begin, requests, block_count, key_count,
    REQUESTS: tl.constexpr, PAGED: tl.constexpr, SLOTS: tl.constexpr, SCALED: tl.constexpr,
    SIZE: tl.constexpr, BK: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Scores of one row against the keys of BK // SIZE of its blocks; grid (rows, tiles).

    Row 0 of all row tensors is row row_begin of row_starts. blocks: [rows, block_count] int32, -1
    for none; scores: [rows, block_count * SIZE] fp32, -inf where the block is none or the key is
    not visible. No key from key_count on is visible, whatever a row claims to see.
    """
    column = tl.program_id(1) * BK + tl.arange(0, BK)
    row = tl.program_id(0).to(tl.int64)
    there = column < block_count * SIZE
    block = tl.load(blocks + row * block_stride + column // SIZE, mask=there, other=-1)
    bound = tl.minimum(tl.load(visible + row), key_count)
    n = block * SIZE + column % SIZE
    # By the block first: the key of a block that does not exist may pass 2^31.
    sees = (block >= 0) & (block < tl.cdiv(bound, SIZE)) & (n < bound)
    out = scores + row * score_stride + column
    x = tl.full((BK,), -float("inf"), tl.float32)
    if tl.max(sees.to(tl.int32), axis=0) > 0:
        if PAGED:
            request = request_of(tl.program_id(0) + row_begin, row_starts, requests, REQUESTS)
            table += request.to(tl.int64) * table_stride
        n = tl.where(sees, n, 0)
        k, k_scales = _key_tile(
            n, sees, keys, key_scales, table, key_stride, key_scale_stride,
            PAGED, SLOTS, SCALED, BK,
        )  # fmt: skip
        head = tl.arange(0, HEADS)
        flat = row * HEADS + head
        q, q_scales = _query_tile(
            queries, query_scales, flat, head >= 0, query_stride, scale_stride, False, SCALED, HEADS
        )
        w = tl.load(weights + row * weight_stride + head).to(tl.float32)
        products = _products(k, k_scales, q, q_scales, SCALED, INTERPRETED)
        products = _relu(products) * tl.expand_dims(w, 0)
        x = tl.where(sees, tl.reshape(_over_heads(products, BK, 1), (BK,)), x)
    tl.store(out, x, mask=there)
