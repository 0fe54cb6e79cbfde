"""Candidate blocks, alone or together with the source layer's own top keys."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.index_scores.api import check_keys, score_rows
from sparkserve_kernels.index_scores.keys import KeyPages, KeyRecords, Keys
from sparkserve_kernels.index_scores.tiles import tile_for
from sparkserve_kernels.index_topk.api import check_scores
from sparkserve_kernels.index_topk.launch import Selection, Source
from sparkserve_kernels.index_topk.plan import Budget
from sparkserve_kernels.index_topk.stream import Sink, Work, select_over_keys
from sparkserve_kernels.index_topk.tiles import BLOCKS, KEYS, key_tile
from sparkserve_kernels.target import supports, target_of

__all__ = [
    "BLOCK_SIZE",
    "Budget",
    "KeyPages",
    "KeyRecords",
    "TopkAndCandidates",
    "blocks_of_scores",
    "candidate_blocks",
    "is_supported",
    "topk_and_candidates",
]
BLOCK_SIZE = 8
DEFAULT_BUDGET = Budget()


class TopkAndCandidates(NamedTuple):
    """What a source layer selects."""

    positions: torch.Tensor
    """[rows, 512] int32, ascending, -1 after the last."""
    blocks: torch.Tensor
    """[rows, 2048] int32, ascending, -1 after the last."""


def is_supported(queries: torch.Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return supports(queries)


def topk_and_candidates(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    key_count: int | None = None,
    row_starts: torch.Tensor | None = None,
    published: torch.Tensor | None = None,
    budget: Budget = DEFAULT_BUDGET,
    rows_hint: int | None = None,
) -> TopkAndCandidates:
    """Select top keys and candidate blocks from one pass of scores.

    Args:
        queries: [rows, 32, 64] uint8, e2m1 payloads of 128 values.
        query_scales: [rows, 32, 4] uint8, e8m0, one per 32 values.
        weights: [rows, 32] fp32 or bf16.
        keys: index-K records of one request, or pages of several.
        visible: [rows] int32, how many keys the row sees: (position + 1) // ratio.
        key_count: at least the largest visible count; what the keys can hold if None.
        row_starts: [requests + 1] int32, or None for one request.
        published: [rows] bool, rows whose blocks are wanted; all if None.
        budget: bounds the scores that exist at a time.
        rows_hint: row count that chooses the tile, where the caller has only a shard of the rows.

    Returns:
        The positions of ``index_topk`` and the blocks of ``candidate_blocks``.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    lines = score_rows(queries, query_scales, weights, visible, row_starts)
    count = check_keys(keys, lines, key_count)
    shown = _shown(visible, published)
    if lines.rows == 0 or count == 0:
        shape, device = (lines.rows, 0), queries.device
        none = torch.empty(shape, dtype=torch.int32, device=device)
        return TopkAndCandidates(_padded(none, KEYS.k), _padded(none, BLOCKS.k))
    target = target_of(queries)
    tile = tile_for(target.family, rows_hint or lines.rows)
    work = Work(lines, keys, count, _aligned(budget), tile, target)
    found = select_over_keys(
        work, (Sink(key_tile(lines.rows), visible), Sink(BLOCKS, shown, group=BLOCK_SIZE))
    )
    return TopkAndCandidates(*found)


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
    budget: Budget = DEFAULT_BUDGET,
    rows_hint: int | None = None,
) -> torch.Tensor:
    """Select the 2048 blocks of 8 keys with the best scores of each row.

    Args:
        queries: as in ``topk_and_candidates``, with all the others.
        query_scales: [rows, 32, 4] uint8.
        weights: [rows, 32] fp32 or bf16.
        keys: index-K records of one request, or pages of several.
        visible: [rows] int32.
        key_count: at least the largest visible count; what the keys can hold if None.
        row_starts: [requests + 1] int32, or None for one request.
        published: [rows] bool, rows whose blocks are wanted; all if None.
        budget: bounds the scores that exist at a time.
        rows_hint: row count that chooses the tile, where the caller has only a shard of the rows.

    Returns:
        [rows, 2048] int32 block ids, ascending, -1 after the last. A block counts by its largest
        visible score, of equal ones the lower id first; the block of the newest visible key
        counts as +inf and is always in. Blocks without a visible number (NaN is none) are never
        in, nor is any block of a row that sees nothing or is not published.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    lines = score_rows(queries, query_scales, weights, visible, row_starts)
    count = check_keys(keys, lines, key_count)
    shown = _shown(visible, published)
    if lines.rows == 0 or count == 0:
        none = torch.empty((lines.rows, 0), dtype=torch.int32, device=queries.device)
        return _padded(none, BLOCKS.k)
    target = target_of(queries)
    tile = tile_for(target.family, rows_hint or lines.rows)
    work = Work(lines, keys, count, _aligned(budget), tile, target)
    return select_over_keys(work, (Sink(BLOCKS, shown, group=BLOCK_SIZE),))[0]


def blocks_of_scores(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Select the 2048 best blocks of 8 of each row of given scores.

    Args:
        scores: [rows, length] fp32; rows may lie apart.
        visible: [rows] int32, scores that count: the first so many.

    Returns:
        [rows, 2048] int32 as in ``candidate_blocks``.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    check_scores(scores, visible)
    if scores.numel() == 0:
        none = torch.empty((scores.shape[0], 0), dtype=torch.int32, device=scores.device)
        return _padded(none, BLOCKS.k)
    target_of(scores)
    selection = Selection(scores.shape[0], BLOCKS, scores.device)
    selection.add(Source(scores, visible, group=BLOCK_SIZE))
    return selection.positions()


def _shown(visible: torch.Tensor, published: torch.Tensor | None) -> torch.Tensor:
    if published is None:
        return visible
    require_dtype("published", published, torch.bool)
    require_shape("published", published, (visible.shape[0],))
    require_same_device(visible=visible, published=published)
    return torch.where(published, visible, 0)


def _aligned(budget: Budget) -> Budget:
    """Blocks of candidates may not straddle two blocks of keys."""
    if budget.block_keys % BLOCK_SIZE:
        raise KernelArgumentError(
            f"budget: block_keys = {budget.block_keys}, expected a multiple of {BLOCK_SIZE}"
        )
    return budget


def _padded(found: torch.Tensor, k: int) -> torch.Tensor:
    return found.new_full((found.shape[0], k), -1)
