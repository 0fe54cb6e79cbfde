"""Indexer scores in plain torch."""

from __future__ import annotations

from itertools import pairwise

import torch

from sparkserve_kernels.index_scores.keys import PAYLOAD_BYTES, Keys, gather_records

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(payload: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values of FP4 vectors.

    Args:
        payload: [..., 64] uint8, element 2i in the low nibble of byte i.
        scales: [..., 4] uint8, e8m0 of 32 elements each.
        dtype: of the result; float32 and float64 hold every value exactly.

    Returns:
        [..., 128].
    """
    table = torch.tensor(_MAGNITUDES, dtype=dtype, device=payload.device)
    table = torch.cat([table, -table])
    codes = torch.stack([payload & 0xF, payload >> 4], dim=-1).long()
    values = table[codes].reshape(*payload.shape[:-1], 4, 32)
    powers = torch.exp2(scales.to(torch.float64) - 127).to(dtype)
    return (values * powers[..., None]).reshape(*payload.shape[:-1], 128)


def over_heads(weighted: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis (32 heads) by the fixed tree of pairs: bits 4, 3, 0, 2, 1."""
    tree = weighted.reshape(*weighted.shape[:-1], 2, 2, 2, 2, 2)
    for axis in (-5, -4, -1, -2, -1):
        one, other = tree.unbind(axis)
        tree = one + other
    return tree


def index_scores(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    key_count: int | None = None,
    row_starts: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The same function as ``api.index_scores``, in fp32 or float64."""
    count = keys.capacity if key_count is None else key_count
    rows = queries.shape[0]
    scores = torch.full((rows, count), -torch.inf, dtype=dtype, device=queries.device)
    starts = [0, rows] if row_starts is None else row_starts.tolist()
    for request, (begin, end) in enumerate(pairwise(starts)):
        if begin == end or count == 0:
            continue
        records = gather_records(keys, request, count)
        k = decode(records[:, :PAYLOAD_BYTES], records[:, PAYLOAD_BYTES:], dtype)
        q = decode(queries[begin:end], query_scales[begin:end], dtype)
        products = torch.einsum("thd,nd->tnh", q.double(), k.double()).to(dtype)
        weighted = products.clamp_min(0) * weights[begin:end, None, :].to(dtype)
        found = over_heads(weighted)
        seen = torch.arange(count, device=visible.device) < visible[begin:end, None]
        scores[begin:end] = torch.where(seen, found, -torch.inf)
    return scores


def candidate_scores(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    blocks: torch.Tensor,
    size: int = 8,
    row_starts: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The same function as ``api.candidate_scores``: picked from the scores of all keys."""
    dense = index_scores(
        queries, query_scales, weights, keys, visible, row_starts=row_starts, dtype=dtype
    )
    inside = torch.arange(size, device=blocks.device)
    position = (blocks.long()[..., None] * size + inside).flatten(1)
    none = (position < 0) | (position >= dense.shape[1])
    return dense.gather(1, position.masked_fill(none, 0)).masked_fill(none, -torch.inf)
