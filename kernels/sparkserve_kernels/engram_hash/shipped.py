"""The compiled forms of the hash and of the history."""

from __future__ import annotations

from sparkserve_kernels.engram_hash.kernel import advance_kernel, hash_kernel
from sparkserve_kernels.engram_hash.tiles import ADVANCE, HASH
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

NGRAM, HEADS = 4, 8
HASH_SIGNATURE = {
    "tokens": "*i64",
    "positions": "*i64",
    "before": "*i32",
    "rows": "*i64",
    "ends": "*i64",
    "token_map": "*i64",
    "multipliers": "*i64",
    "primes": "*i64",
    "first_rows": "*i64",
    "out": "*i64",
    "count": "i32",
    "requests": "i32",
    "block": "i32",
    "known_tokens": "i32",
    "pad_id": "i64",
    "image_token": "i64",
}
ADVANCE_SIGNATURE = {
    "history": "*i32",
    "slots": "*i64",
    "tokens": "*i64",
    "before": "*i32",
    "rows": "*i64",
    "ends": "*i64",
    "accepted": "*i64",
    "places": "*i64",
    "requests": "i32",
    "block": "i32",
    "media_start": "i64",
    "media_as": "i64",
}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Both kernels for equal runs (decode, verify) and ragged ones (extend)."""
    return (
        _hash("blocks", ragged=False),
        _hash("ragged", ragged=True),
        _advance("blocks accepted in part", ragged=False),
        _advance("ragged", ragged=True),
    )


def _hash(name: str, *, ragged: bool) -> Shipped:
    return Shipped(
        label=f"hash {name} {HASH.size}x{HEADS}",
        kernel=hash_kernel,
        signature=HASH_SIGNATURE,
        constants={
            "NGRAM": NGRAM,
            "HEADS": HEADS,
            "HEADS_PADDED": HEADS,
            "RAGGED": ragged,
            "BY_ROW": True,
            "VISION": True,
            "TOKENS": HASH.size,
            "CHUNK": HASH.chunk,
        },
        warps=HASH.warps,
        stages=3,
    )


def _advance(name: str, *, ragged: bool) -> Shipped:
    return Shipped(
        label=f"advance {name} {ADVANCE.size}",
        kernel=advance_kernel,
        signature=ADVANCE_SIGNATURE,
        constants={
            "LOOKBACK": NGRAM - 1,
            "PADDED": NGRAM,
            "RAGGED": ragged,
            "BY_ROW": True,
            "PARTLY": not ragged,
            "PLACED": ragged,
            "REQUESTS": ADVANCE.size,
        },
        warps=ADVANCE.warps,
        stages=3,
    )
