"""Indexer scores: all keys of a request, or those of each row's candidate blocks."""

from __future__ import annotations

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.index_scores.keys import KeyPages, KeyRecords, Keys, places_of
from sparkserve_kernels.index_scores.launch import ScoreRows, launch_candidates, launch_scores
from sparkserve_kernels.index_scores.tiles import DIM, HEADS, tile_for
from sparkserve_kernels.target import supports, target_of

__all__ = ["KeyPages", "KeyRecords", "candidate_scores", "index_scores", "is_supported"]


def is_supported(queries: torch.Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return supports(queries)


def score_rows(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    visible: torch.Tensor,
    row_starts: torch.Tensor | None,
) -> ScoreRows:
    """Check the tensors that have a line per row and fold their heads.

    Raises:
        KernelArgumentError: a shape, dtype, stride or device that does not fit.
    """
    rows = queries.shape[0]
    require_dtype("queries", queries, torch.uint8)
    require_shape("queries", queries, (None, HEADS, DIM // 2))
    require_dtype("query_scales", query_scales, torch.uint8)
    require_shape("query_scales", query_scales, (rows, HEADS, DIM // 32))
    require_dtype("weights", weights, torch.float32, torch.bfloat16)
    require_shape("weights", weights, (rows, HEADS))
    require_contiguous_rows("weights", weights)
    require_dtype("visible", visible, torch.int32)
    require_shape("visible", visible, (rows,))
    require_contiguous_rows("visible", visible)
    named = {"queries": queries, "query_scales": query_scales}
    require_same_device(**named, weights=weights, visible=visible)
    if row_starts is not None:
        require_dtype("row_starts", row_starts, torch.int32)
        require_shape("row_starts", row_starts, (None,))
        require_contiguous_rows("row_starts", row_starts)
        require_same_device(queries=queries, row_starts=row_starts)
    return ScoreRows(
        queries=queries.reshape(rows * HEADS, DIM // 2),
        scales=query_scales.reshape(rows * HEADS, DIM // 32),
        weights=weights,
        visible=visible,
        row_starts=row_starts,
    )


def check_keys(keys: Keys, rows: ScoreRows, key_count: int | None) -> int:
    """Check the keys against the rows; gives how many keys are scored.

    Raises:
        KernelArgumentError: too few keys or requests, or several requests without pages.
    """
    keys.check()
    require_same_device(queries=rows.queries, keys=places_of(keys).payload)
    requests = 1 if rows.row_starts is None else rows.row_starts.shape[0] - 1
    if requests < 0:
        raise KernelArgumentError("row_starts: shape [0], expected [requests + 1]")
    if isinstance(keys, KeyPages):
        if keys.table.shape[0] != requests:
            raise KernelArgumentError(
                f"table: {keys.table.shape[0]} requests, expected {requests} as in row_starts"
            )
    elif requests > 1:
        raise KernelArgumentError(f"{requests} requests, expected 1 for keys without a page table")
    count = keys.capacity if key_count is None else key_count
    if not 0 <= count <= keys.capacity:
        raise KernelArgumentError(f"key_count = {count}, expected 0 to {keys.capacity}")
    return count


def index_scores(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    key_count: int | None = None,
    row_starts: torch.Tensor | None = None,
    rows_hint: int | None = None,
) -> torch.Tensor:
    """Score every visible key for every row: sum over heads of relu(q.k) * w.

    Args:
        queries: [rows, 32, 64] uint8, e2m1 payloads of 128 values.
        query_scales: [rows, 32, 4] uint8, e8m0, one per 32 values.
        weights: [rows, 32] fp32 or bf16, of either sign.
        keys: index-K records of one request, or pages of several.
        visible: [rows] int32, how many keys the row sees: (position + 1) // ratio.
        key_count: keys that are scored; all the records or table can hold if None.
        row_starts: [requests + 1] int32, first row of each request and the number of rows; one
            request if None. Requests without rows are fine.
        rows_hint: row count that chooses the tile, where the caller has only a shard of the rows.

    Returns:
        [rows, key_count] fp32; -inf at keys that are not visible. No rows or keys: empty.
        A score has the same bits whatever the other rows, the tile and the layout of the keys,
        while the four products of a query's and a key's group scales lie within 2^9 of each other;
        beyond that only whatever the other rows and the layout, at one tile.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.

    Format of queries and keys: docs/format/numbers.md.
    """
    lines = score_rows(queries, query_scales, weights, visible, row_starts)
    count = check_keys(keys, lines, key_count)
    shape = (queries.shape[0], count)
    scores = torch.full(shape, -torch.inf, dtype=torch.float32, device=queries.device)
    if scores.numel() == 0:
        return scores
    target = target_of(queries)
    tile = tile_for(target.family, rows_hint or queries.shape[0])
    launch_scores(lines.widened(tile, target), keys, scores, 0, tile=tile, target=target)
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
) -> torch.Tensor:
    """Score only the keys of each row's candidate blocks.

    Args:
        queries: as in ``index_scores``, with query_scales, weights, keys, visible, row_starts.
        query_scales: [rows, 32, 4] uint8.
        weights: [rows, 32] fp32 or bf16.
        keys: index-K records of one request, or pages of several.
        visible: [rows] int32.
        blocks: [rows, blocks] int32, block ids of the row; -1 for none.
        size: keys per block, a power of two.
        row_starts: [requests + 1] int32, or None for one request.

    Returns:
        [rows, blocks * size] fp32, with the bits that ``index_scores`` gives for the same keys;
        -inf at keys that are not visible and for block -1.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    lines = score_rows(queries, query_scales, weights, visible, row_starts)
    check_keys(keys, lines, None)
    check_blocks(blocks, queries.shape[0], size)
    require_same_device(queries=queries, blocks=blocks)
    shape = (blocks.shape[0], blocks.shape[1] * size)
    scores = torch.empty(shape, dtype=torch.float32, device=queries.device)
    if scores.numel():
        launch_candidates(lines, keys, blocks, scores, size)
    return scores


def check_blocks(blocks: torch.Tensor, rows: int, size: int) -> None:
    """Refuse candidate blocks of another shape or dtype.

    Raises:
        KernelArgumentError: naming what does not fit.
    """
    require_dtype("blocks", blocks, torch.int32)
    require_shape("blocks", blocks, (rows, None))
    require_contiguous_rows("blocks", blocks)
    if size not in (1, 2, 4, 8, 16, 32):
        raise KernelArgumentError(f"size = {size}, expected 1, 2, 4, 8, 16 or 32")
