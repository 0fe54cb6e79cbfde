"""Count the leading drafts of each request that are worth verifying: one lane per request.

It moves 4 bytes per draft and 8 per request: what it costs is its
launch. The product is taken from the first draft on in fp32, so that equal confidences give equal
lengths on every rank.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["t0", "t1", "t2", "t3", "t4", "requests", "at_least"])
def live_lengths_kernel(
    confidence,
    lengths,
    t0: tl.float32,
    t1: tl.float32,
    t2: tl.float32,
    t3: tl.float32,
    t4: tl.float32,
    requests: tl.int32,
    row_stride,
    at_least: tl.int32,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """lengths[r] = 1 + max(at_least, leading drafts whose product reaches its threshold)."""
    request = tl.arange(0, BLOCK)
    real = request < requests
    first = confidence + request.to(tl.int64) * row_stride
    product = tl.full((BLOCK,), 1.0, dtype=tl.float32)
    going = request >= 0
    kept = tl.zeros((BLOCK,), dtype=tl.int32)
    for draft in tl.static_range(DRAFTS):
        c = tl.load(first + draft, mask=real, other=0.0)
        # Comparisons with NaN are false: it stays NaN, and so does the product.
        c = tl.where(c > 1.0, 1.0, tl.where(c < 0.0, 0.0, c))
        product = product * c
        threshold = t0
        if draft == 1:
            threshold = t1
        elif draft == 2:
            threshold = t2
        elif draft == 3:
            threshold = t3
        elif draft == 4:
            threshold = t4
        going = going & (product >= threshold)
        kept += going.to(tl.int32)
    length = (1 + tl.maximum(kept, at_least)).to(tl.int64)
    tl.store(lengths + request, length, mask=real)
