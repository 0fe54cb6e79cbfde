"""Selection in plain torch: one stable sort per row."""

from __future__ import annotations

import torch

from sparkserve_kernels.index_scores import reference as scores_reference
from sparkserve_kernels.index_scores.keys import Keys
from sparkserve_kernels.index_topk.launch import SlotMap


def top_positions(scores: torch.Tensor, visible: torch.Tensor, *, k: int = 512) -> torch.Tensor:
    """The same function as ``api.top_positions``."""
    rows, length = scores.shape
    position = torch.arange(length, device=scores.device)
    usable = (position < visible[:, None]) & ~torch.isnan(scores)
    values = torch.where(usable, scores, -torch.inf)
    order = torch.sort(values, dim=1, descending=True, stable=True)
    best = torch.full((rows, k), -1, dtype=torch.int64, device=scores.device)
    count = min(k, length)
    chosen = order.indices[:, :count]
    chosen = chosen.masked_fill(torch.isneginf(order.values[:, :count]), length)
    best[:, :count] = chosen.sort(dim=1).values
    return best.masked_fill(best == length, -1).to(torch.int32)


def index_topk(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    key_count: int | None = None,
    row_starts: torch.Tensor | None = None,
    k: int = 512,
) -> torch.Tensor:
    """The same function as ``api.index_topk``."""
    scores = scores_reference.index_scores(
        queries,
        query_scales,
        weights,
        keys,
        visible,
        key_count=key_count,
        row_starts=row_starts,
    )
    return top_positions(scores, visible, k=k)


def candidate_topk(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    blocks: torch.Tensor,
    size: int = 8,
    row_starts: torch.Tensor | None = None,
    k: int = 512,
) -> torch.Tensor:
    """The same function as ``api.candidate_topk``: all keys scored, those of no block masked."""
    scores = scores_reference.index_scores(
        queries, query_scales, weights, keys, visible, row_starts=row_starts
    )
    rows, length = scores.shape
    chosen = torch.zeros((rows, -(-length // size) + 1), dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, blocks.long() + 1, torch.ones_like(blocks, dtype=torch.bool))
    mask = chosen[:, 1:].repeat_interleave(size, dim=1)[:, :length]
    return top_positions(scores.masked_fill(~mask, -torch.inf), visible, k=k)


def slots_of(
    positions: torch.Tensor, slot_map: SlotMap, *, row_starts: torch.Tensor | None = None
) -> torch.Tensor:
    """The same function as ``api.slots_of``."""
    rows = positions.shape[0]
    request = torch.zeros(rows, dtype=torch.int64, device=positions.device)
    if row_starts is not None:
        lengths = row_starts[1:].long() - row_starts[:-1].long()
        numbers = torch.arange(len(lengths), device=positions.device)
        request = torch.repeat_interleave(numbers, lengths)
    line = slot_map.requests[request].long()
    token = slot_map.request_to_token[line[:, None], positions.clamp_min(0).long() * slot_map.ratio]
    return torch.where(positions < 0, -1, token // slot_map.ratio).to(torch.int32)
