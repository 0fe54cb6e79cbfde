"""Top keys of each row: from queries and keys, from candidate blocks, or from given scores."""

from __future__ import annotations

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.index_scores.api import check_blocks, check_keys, score_rows
from sparkserve_kernels.index_scores.keys import KeyPages, KeyRecords, Keys
from sparkserve_kernels.index_scores.tiles import tile_for
from sparkserve_kernels.index_topk.launch import Selection, SlotMap, Source, launch_slots
from sparkserve_kernels.index_topk.plan import Budget
from sparkserve_kernels.index_topk.stream import Sink, Work, select_over_blocks, select_over_keys
from sparkserve_kernels.index_topk.tiles import KEYS, key_tile
from sparkserve_kernels.target import supports, target_of

__all__ = [
    "Budget",
    "KeyPages",
    "KeyRecords",
    "SlotMap",
    "candidate_topk",
    "index_topk",
    "is_supported",
    "slots_of",
    "top_positions",
]
DEFAULT_BUDGET = Budget()


def is_supported(queries: torch.Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return supports(queries)


def index_topk(
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: Keys,
    visible: torch.Tensor,
    *,
    key_count: int | None = None,
    row_starts: torch.Tensor | None = None,
    budget: Budget = DEFAULT_BUDGET,
    rows_hint: int | None = None,
) -> torch.Tensor:
    """Select the 512 visible keys with the largest scores of each row.

    Args:
        queries: [rows, 32, 64] uint8, e2m1 payloads of 128 values.
        query_scales: [rows, 32, 4] uint8, e8m0, one per 32 values.
        weights: [rows, 32] fp32 or bf16.
        keys: index-K records of one request, or pages of several.
        visible: [rows] int32, how many keys the row sees: (position + 1) // ratio.
        key_count: at least the largest visible count; what the keys can hold if None.
        row_starts: [requests + 1] int32, first row of each request and the number of rows; one
            request if None. Requests without rows are fine.
        budget: bounds the scores that exist at a time.
        rows_hint: row count that chooses the tile, where the caller has only a shard of the rows.

    Returns:
        [rows, 512] int32 positions, ascending, -1 after the last. Order of selection: the larger
        score, of equal ones the lower position. A NaN score (broken input) is never selected, nor
        is -inf. The budget does not change the result, nor do rows beside a row.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    lines = score_rows(queries, query_scales, weights, visible, row_starts)
    count = check_keys(keys, lines, key_count)
    if lines.rows == 0 or count == 0:
        return _none(lines.rows, queries.device)
    target = target_of(queries)
    tile = tile_for(target.family, rows_hint or lines.rows)
    work = Work(lines, keys, count, budget, tile, target)
    return select_over_keys(work, (Sink(key_tile(lines.rows), visible),))[0]


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
    budget: Budget = DEFAULT_BUDGET,
) -> torch.Tensor:
    """Select the 512 best visible keys among each row's candidate blocks.

    Only those keys are read and scored; the result is that of scoring all keys and masking.

    Args:
        queries: as in ``index_topk``, with query_scales, weights, keys, visible, row_starts.
        query_scales: [rows, 32, 4] uint8.
        weights: [rows, 32] fp32 or bf16.
        keys: index-K records of one request, or pages of several.
        visible: [rows] int32.
        blocks: [rows, blocks] int32, ascending, -1 after the last, as ``candidate_blocks`` gives.
        size: keys per block.
        row_starts: [requests + 1] int32, or None for one request.
        budget: bounds the scores that exist at a time.

    Returns:
        [rows, 512] int32 positions, ascending, -1 after the last.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    lines = score_rows(queries, query_scales, weights, visible, row_starts)
    count = check_keys(keys, lines, None)
    check_blocks(blocks, lines.rows, size)
    require_same_device(queries=queries, blocks=blocks)
    if lines.rows == 0 or blocks.shape[1] == 0:
        return _none(lines.rows, queries.device)
    target = target_of(queries)
    work = Work(lines, keys, count, budget, tile_for(target.family, lines.rows), target)
    return select_over_blocks(work, blocks, size, key_tile(lines.rows))


def top_positions(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Select the 512 largest visible scores of each row.

    Args:
        scores: [rows, length] fp32; rows may lie apart.
        visible: [rows] int32, scores that count: the first so many.

    Returns:
        [rows, 512] int32 positions, ascending, -1 after the last; order, NaN and -inf as in
        ``index_topk``.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    check_scores(scores, visible)
    if scores.numel() == 0:
        return _none(scores.shape[0], scores.device)
    target_of(scores)
    selection = Selection(scores.shape[0], key_tile(scores.shape[0]), scores.device)
    selection.add(Source(scores, visible))
    return selection.positions()


def slots_of(
    positions: torch.Tensor, slot_map: SlotMap, *, row_starts: torch.Tensor | None = None
) -> torch.Tensor:
    """Map selected positions to slots: request_to_token[request, position * ratio] // ratio.

    Args:
        positions: [rows, k] int32, -1 for none.
        slot_map: request_to_token [pool rows, tokens] int32, the requests' pool rows, the ratio.
        row_starts: [requests + 1] int32, first row of each request and the number of rows; one
            request if None.

    Returns:
        [rows, k] int32, -1 for none.

    Raises:
        KernelArgumentError: an argument that does not fit.
        UnsupportedDevice: the tensors lie where the kernel cannot run.
    """
    tokens, pool_rows = slot_map.request_to_token, slot_map.requests
    requests = 1 if row_starts is None else row_starts.shape[0] - 1
    require_dtype("positions", positions, torch.int32)
    require_shape("positions", positions, (None, None))
    require_contiguous_rows("positions", positions)
    require_dtype("request_to_token", tokens, torch.int32)
    require_shape("request_to_token", tokens, (None, None))
    require_contiguous_rows("request_to_token", tokens)
    require_dtype("requests", pool_rows, torch.int32)
    require_shape("requests", pool_rows, (requests,))
    require_same_device(positions=positions, request_to_token=tokens, requests=pool_rows)
    if row_starts is not None:
        require_dtype("row_starts", row_starts, torch.int32)
        require_same_device(positions=positions, row_starts=row_starts)
    if slot_map.ratio < 1:
        raise KernelArgumentError(f"ratio = {slot_map.ratio}, expected at least 1")
    slots = torch.empty(positions.shape, dtype=torch.int32, device=positions.device)
    if slots.numel():
        target_of(positions)
        launch_slots(positions, slots, slot_map, row_starts)
    return slots


def check_scores(scores: torch.Tensor, visible: torch.Tensor) -> None:
    """Refuse scores and visible counts that do not fit together.

    Raises:
        KernelArgumentError: naming shape, dtype, strides or device.
    """
    require_dtype("scores", scores, torch.float32)
    require_shape("scores", scores, (None, None))
    require_contiguous_rows("scores", scores)
    require_dtype("visible", visible, torch.int32)
    require_shape("visible", visible, (scores.shape[0],))
    require_contiguous_rows("visible", visible)
    require_same_device(scores=scores, visible=visible)


def _none(rows: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows, KEYS.k), -1, dtype=torch.int32, device=device)
