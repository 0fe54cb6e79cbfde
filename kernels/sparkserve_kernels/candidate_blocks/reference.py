"""Candidate blocks in plain torch."""

from __future__ import annotations

import torch

from sparkserve_kernels.index_scores import reference as scores_reference
from sparkserve_kernels.index_scores.keys import Keys
from sparkserve_kernels.index_topk import reference as topk_reference


def blocks_of_scores(
    scores: torch.Tensor, visible: torch.Tensor, *, size: int = 8, k: int = 2048
) -> torch.Tensor:
    """The same function as ``api.blocks_of_scores``."""
    rows, length = scores.shape
    blocks = -(-length // size)
    position = torch.arange(length, device=scores.device)
    usable = (position < visible[:, None]) & ~torch.isnan(scores)
    padded = torch.full((rows, blocks * size), -torch.inf, device=scores.device)
    padded[:, :length] = torch.where(usable, scores, -torch.inf)
    best = padded.reshape(rows, blocks, size).amax(dim=2) if length else padded
    newest = (visible.long() - 1) // size
    number = torch.arange(blocks, device=scores.device)
    best = best.masked_fill((number == newest[:, None]) & (visible > 0)[:, None], torch.inf)
    return topk_reference.top_positions(best, torch.full_like(visible, blocks), k=k)


def candidate_blocks(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    key_count: int | None = None,
    row_starts: torch.Tensor | None = None,
    published: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same function as ``api.candidate_blocks``."""
    scores = scores_reference.index_scores(
        queries,
        query_scales,
        weights,
        keys,
        visible,
        key_count=key_count,
        row_starts=row_starts,
    )
    shown = visible if published is None else torch.where(published, visible, 0)
    return blocks_of_scores(scores, shown)
