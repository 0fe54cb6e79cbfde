"""Candidate blocks equal one stable sort of block maxima, and consumers see only them."""

from __future__ import annotations

import pytest
import torch
from sparkserve_kernels.candidate_blocks import reference
from sparkserve_kernels.candidate_blocks.api import (
    Budget,
    blocks_of_scores,
    candidate_blocks,
    is_supported,
    topk_and_candidates,
)
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.index_scores.api import KeyRecords, score_rows
from sparkserve_kernels.index_scores.tiles import tile_for
from sparkserve_kernels.index_topk import launch, stream
from sparkserve_kernels.index_topk import reference as topk_reference
from sparkserve_kernels.index_topk.api import candidate_topk, index_topk
from sparkserve_kernels.index_topk.tiles import SelectTile
from sparkserve_kernels.target import target_of

from tests.kernels.index_data import draw_keys, draw_rows, paged

TINY = SelectTile(k=4, capacity=16, chunk=8, step=8, warps=1)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: real shapes")


def brute(scores, visible, k):
    """By Python's own sort, row by row."""
    rows = []
    for line, bound in zip(scores.tolist(), visible.tolist(), strict=True):
        best = {}
        for i, x in enumerate(line[:bound]):
            if x == x and x > float("-inf"):
                best[i // 8] = max(x, best.get(i // 8, x))
        if bound:
            best[(bound - 1) // 8] = float("inf")
        chosen = sorted(sorted(best, key=lambda block: (-best[block], block))[:k])
        rows.append(chosen + [-1] * (k - len(chosen)))
    return torch.tensor(rows, dtype=torch.int32).reshape(len(rows), k)


@pytest.mark.parametrize("bounds", [(131, 64, 0), (128, 65, 1), (8, 9, 7)])
def test_blocks_are_those_of_a_stable_sort(bounds, device, generator):
    scores = torch.randint(-3, 3, (3, 131), generator=generator, device=device).float()
    scores[:, ::7] = float("nan")
    visible = torch.tensor(bounds, dtype=torch.int32, device=device)
    selection = launch.Selection(3, TINY, device)
    for begin in range(0, 131, 40):
        part = scores[:, begin : begin + 40]
        selection.add(launch.Source(part, visible, first=begin // 8, group=8))
    want = brute(scores, visible, 4)
    assert torch.equal(selection.positions().cpu(), want)
    assert torch.equal(reference.blocks_of_scores(scores, visible, k=4).cpu(), want)


def test_the_newest_block_is_in_whatever_its_scores(device):
    scores = torch.ones((2, 40), device=device)
    scores[0, 32:] = -1e30
    scores[1, 32:] = float("nan")
    visible = torch.tensor([33, 40], dtype=torch.int32, device=device)
    selection = launch.Selection(2, TINY, device)
    selection.add(launch.Source(scores, visible, group=8))
    assert selection.positions().tolist() == [[0, 1, 2, 4], [0, 1, 2, 4]]


def test_a_row_that_claims_to_see_more_than_there_is(device, generator):
    far = torch.full((2, 32), 1e30, device=device)
    scores = far[:, :19].copy_(torch.randn((2, 19), generator=generator, device=device))
    visible = torch.tensor([19, 90], dtype=torch.int32, device=device)
    selection = launch.Selection(2, TINY, device)
    selection.add(launch.Source(scores, visible, group=8))
    assert selection.positions().tolist() == [[0, 1, 2, -1]] * 2


def test_the_shipped_tile(device, generator):
    scores = torch.randn((2, 80), generator=generator, device=device)
    visible = torch.tensor([77, 0], dtype=torch.int32, device=device)
    found = blocks_of_scores(scores, visible)
    assert found.shape == (2, 2048)
    assert torch.equal(found, reference.blocks_of_scores(scores, visible))
    assert (blocks_of_scores(scores[:, :0], visible) == -1).all()


def source_layer(generator):
    """Rows of three requests, the second without rows, and their keys."""
    rows = draw_rows(5, 93, generator)
    row_starts = torch.tensor([0, 2, 2, 5], dtype=torch.int32, device=generator.device)
    rows[3][:2].clamp_(max=50)
    keys = paged([draw_keys(n, generator) for n in (50, 9, 93)], slots=8, generator=generator)
    return rows, keys, row_starts


SCENARIOS = {
    "all rows published": [True] * 5,
    "tails published": [False, True, False, False, True],
    "nothing published": [False] * 5,
}


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_chunks_of_rows_publish_what_the_whole_publishes(scenario, chunk, device, generator):
    rows, keys, row_starts = source_layer(generator)
    published = torch.tensor(SCENARIOS[scenario], device=device)
    shown = torch.where(published, rows[3], 0)
    lines = score_rows(*rows, row_starts)
    target = target_of(rows[0])
    budget = Budget(score_bytes=4 * chunk * 32, block_keys=32)
    work = stream.Work(lines, keys, keys.capacity, budget, tile_for(target.family, 5), target)
    sinks = (stream.Sink(TINY, rows[3]), stream.Sink(TINY, shown, group=8))
    positions, blocks = stream.select_over_keys(work, sinks)
    given = (*rows[:3], keys, rows[3])
    scores = topk_reference.scores_reference.index_scores(*given, row_starts=row_starts)
    assert torch.equal(positions.cpu(), topk_reference.top_positions(scores, rows[3], k=4).cpu())
    assert torch.equal(blocks.cpu(), brute(scores, shown, 4))


def test_source_and_consumer_on_a_ragged_batch(device, generator):
    rows, keys, row_starts = source_layer(generator)
    given = (*rows[:3], keys, rows[3])
    published = torch.tensor(SCENARIOS["tails published"], device=device)
    found = topk_and_candidates(*given, row_starts=row_starts, published=published)
    assert torch.equal(found.positions, index_topk(*given, row_starts=row_starts))
    want = reference.candidate_blocks(*given, row_starts=row_starts, published=published)
    assert torch.equal(found.blocks, want)
    assert torch.equal(candidate_blocks(*given, row_starts=row_starts, published=published), want)
    consumed = candidate_topk(*given, blocks=found.blocks[:, :16], row_starts=row_starts)
    # So few keys lie all in some block: a published row consumes what it would select anyway.
    assert torch.equal(consumed[published], found.positions[published])
    assert (consumed[~published] == -1).all()


def test_no_rows_and_what_does_not_fit(device, generator):
    rows = draw_rows(2, 5, generator)
    keys = KeyRecords.packed(draw_keys(5, generator))
    none = [tensor[:0] for tensor in rows]
    assert candidate_blocks(*none[:3], keys, none[3]).shape == (0, 2048)
    empty = topk_and_candidates(*none[:3], keys, none[3])
    assert (empty.positions.shape, empty.blocks.shape) == ((0, 512), (0, 2048))
    with pytest.raises(KernelArgumentError, match="block_keys = 12, expected a multiple of 8"):
        candidate_blocks(
            *rows[:3], keys, rows[3], budget=Budget(score_bytes=1 << 20, block_keys=12)
        )
    with pytest.raises(KernelArgumentError, match="published: dtype int32, expected bool"):
        candidate_blocks(*rows[:3], keys, rows[3], published=rows[3])
    assert is_supported(rows[0])


@GPU
@pytest.mark.parametrize(("rows", "length"), [(6, 262_144), (1031, 40_009)])
def test_real_shapes_equal_a_stable_sort(rows, length, device, generator):
    scores = torch.randint(-9000, 9000, (rows, length), generator=generator, device=device).float()
    visible = torch.randint(
        0, length + 1, (rows,), dtype=torch.int32, device=device, generator=generator
    )
    assert torch.equal(
        blocks_of_scores(scores, visible), reference.blocks_of_scores(scores, visible)
    )


@GPU
def test_source_layer_at_a_real_shape_within_its_memory(device, generator):
    rows = draw_rows(4096, 65_536, generator)
    keys = paged([draw_keys(65_536, generator)], slots=64, generator=generator)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = topk_and_candidates(*rows[:3], keys, rows[3])
    assert torch.cuda.max_memory_allocated() - before <= 1 << 30
    for some in (slice(0, 16), slice(4080, 4096)):
        part = [tensor[some] for tensor in rows]
        given = (*part[:3], keys, part[3])
        assert torch.equal(found.positions[some], topk_reference.index_topk(*given))
        assert torch.equal(found.blocks[some], reference.candidate_blocks(*given))


@GPU
def test_a_graph_replays_on_new_inputs(device, generator):
    rows = draw_rows(6, 30_000, generator)
    keys = KeyRecords.packed(draw_keys(30_000, generator))
    topk_and_candidates(*rows[:3], keys, rows[3])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = topk_and_candidates(*rows[:3], keys, rows[3])
        consumed = candidate_topk(*rows[:3], keys, rows[3], blocks=found.blocks)
    for tensor, fresh in zip(rows, draw_rows(6, 30_000, generator), strict=True):
        tensor.copy_(fresh)
    graph.replay()
    given = (*rows[:3], keys, rows[3])
    blocks = reference.candidate_blocks(*given)
    assert torch.equal(found.blocks, blocks)
    assert torch.equal(consumed, topk_reference.candidate_topk(*given, blocks=blocks))
