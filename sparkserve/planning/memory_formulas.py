"""Formulas of unified memory on a Spark, each with its public source.

Everything here is arithmetic on plain numbers; GiB = 2^30 bytes. On an integrated GPU the engine
takes MemAvailable for free GPU memory, so every gibibyte below comes from one pool.
"""

from __future__ import annotations

import math

from sparkserve.units import GIB, MIB

SPARK_TOTAL_GIB = 121.7
"""MemTotal of a GB10; public reports say 121.63 to 121.7."""
SPARK_AVAILABLE_GIB = 116.0
"""MemAvailable of a headless Spark after a boot: the healthy baseline of the public cases has
116.06; with a desktop at most 114.5 was seen."""
VLM_CACHE_GIB = 0.1
"""``SGLANG_VLM_CACHE_SIZE_MB=100``, which SGLang 0.5.23 takes from the budget."""
SWA_POOL_GIB = 0.34
"""Sliding-window pool of DeepSeek-V4.1; profiles specification 4.3."""
ABORT_FLOOR_GIB = 1.5
"""Free memory below which the published guard stops every rank."""
COMFORT_FLOOR_GIB = 5.0
"""[proposal] Free memory that leaves room for the page cache."""
HEAD_OVERHEAD_GIB = 1.3
"""HTTP server, tokenizer and detokenizer of rank 0; published for three and four Sparks."""
TRANSIENT_LIMIT = 2.05e8
"""Largest chunk x prefix (tokens squared) that ran on three Sparks without the chunked indexer.
The published rule says 2.0e8 and its own default, 768 x 262,144, is 2.01e8; 2.6e8 tripped the
guard."""
CHUNK_STEP = 256
_TRANSIENT_BYTES = 14
_ADAPTIVE = 2.0e8
_CONNECTIONS = 512
_NCCL_TUNED_BYTES = 0.14e9
_GRAPH_BYTES_AT_16 = 5.6e9
_CHUNKED_BUDGET_BYTES = 2 * GIB
"""``DSV41_INDEXER_LOGITS_BUDGET_BYTES``."""


def kv_bytes_per_token(*, layers: int = 40, draft_layers: int = 1) -> float:
    """Bytes that one token takes in DeepSeek-V4.1's KV pool, on every rank alike.

    584 = 448 (fp8) + 64 x 2 (rope, bf16) + 8 (scales); 68 = fp4 index key 128/2 + 128/32; the four
    layers that own keys (2, 8, 14 with ratio 2 and 20 with ratio 1) add up to 2.5 records.
    """
    record = 448 + 64 * 2 + 8
    index_key = 128 / 2 + 128 / 32
    per_ratio = 3 / 2 + 1
    return (record + index_key) * per_ratio * (layers + draft_layers) / layers


def kv_gib(tokens: int, bytes_per_token: float) -> float:
    """Size of a pool."""
    return tokens * bytes_per_token / GIB


def kv_tokens(gib: float, bytes_per_token: float) -> int:
    """Whole tokens that a pool of this size holds; none where the size is negative."""
    return max(int(gib * GIB / bytes_per_token), 0)


def kv_budget_gib(available_gib: float, loaded_gib: float, fraction: float) -> float:
    """What a rank has for its pools: ``post - (1 - f) * pre - 0.1``.

    available_gib: MemAvailable before loading (``pre``); loaded_gib: what loading takes, so that
    ``post = pre - loaded``. The engine takes the smallest of all ranks.
    """
    return available_gib - loaded_gib - (1 - fraction) * available_gib - VLM_CACHE_GIB


def least_fraction(available_gib: float, loaded_gib: float, pools_gib: float = 0.0) -> float:
    """The memory fraction at which pools of this size just fit; without pools ``1 - post/pre``."""
    post = available_gib - loaded_gib
    share = VLM_CACHE_GIB if pools_gib else 0.0
    return 1 - (post - pools_gib - share) / available_gib


def needed_gib(
    loaded_gib: float, pin_gib: float, fraction: float, swa_gib: float = SWA_POOL_GIB
) -> float:
    """MemAvailable that a start needs for its pin: ``(loaded + pin + 0.34 + 0.1) / f``."""
    return (loaded_gib + pin_gib + swa_gib + VLM_CACHE_GIB) / fraction


def enough(gib: float) -> str:
    """A least size with one digit, rounded up: what is printed suffices."""
    return f"{math.ceil(round(gib * 10, 6)) / 10:.1f}"


def transient_gib(chunk_tokens: int, prefix_tokens: int, *, chunked: bool) -> float:
    """Peak of the prefill indexer: 14 B x chunk x prefix, or at most 2 GiB with blocks."""
    peak = _TRANSIENT_BYTES * chunk_tokens * prefix_tokens
    return (min(peak, _CHUNKED_BUDGET_BYTES) if chunked else peak) / GIB


def adaptive_chunk(prefix_tokens: int) -> int:
    """``clamp(floor_256(2e8 / L), 256, 2048)``; a proposal that nobody has built."""
    step = int(_ADAPTIVE / max(prefix_tokens, 1)) // CHUNK_STEP * CHUNK_STEP
    return min(max(step, CHUNK_STEP), 2048)


def largest_chunk(prefix_tokens: int, room_gib: float) -> int:
    """Largest chunk, in steps of 256, whose unchunked transient fits the room; 0 = none."""
    per_token = _TRANSIENT_BYTES * max(prefix_tokens, 1)
    return max(int(room_gib * GIB / per_token) // CHUNK_STEP * CHUNK_STEP, 0)


def nccl_gib(*, tuned: bool) -> float:
    """Pinned buffers of one node: 512 connections of 4 + 4.69 + 0.5 MiB, or 0.14 GB tuned."""
    if tuned:
        return _NCCL_TUNED_BYTES / GIB
    return _CONNECTIONS * (4 + 4.69 + 0.5) * MIB / GIB


def graphs_gib(requests: int) -> float:
    """CUDA graphs: 5.6 GB at 16 requests; fewer in proportion [proposal]."""
    return _GRAPH_BYTES_AT_16 * requests / 16 / GIB


def tables_gib(rows: int, ranks: int) -> float:
    """Engram tables in memory, 264 B a row: 188.8 GiB over all ranks of DeepSeek-V4.1-Flash."""
    return 264 * rows / ranks / GIB


def scales_gib(rows: int, ranks: int) -> float:
    """Row scales that are pinned where the rows are not packed: 8 B for each row of a rank."""
    return 8 * rows / ranks / GIB
