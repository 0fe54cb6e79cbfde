"""Selection equals one stable sort: across blocks, segments, ties, NaN and ragged batches."""

from __future__ import annotations

import itertools

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.index_scores.api import score_rows
from sparkserve_kernels.index_scores.tiles import tile_for
from sparkserve_kernels.index_topk import launch, reference, stream
from sparkserve_kernels.index_topk.api import (
    Budget,
    KeyRecords,
    SlotMap,
    candidate_topk,
    index_topk,
    is_supported,
    slots_of,
    top_positions,
)
from sparkserve_kernels.index_topk.plan import spans
from sparkserve_kernels.index_topk.tiles import (
    KEYS,
    KEYS_OF_FEW,
    SelectTile,
    key_tile,
    segment_count,
)
from sparkserve_kernels.target import target_of

from tests.kernels.index_data import draw_keys, draw_rows, paged

TINY = SelectTile(k=4, capacity=16, chunk=8, step=8, warps=1)
SMALL = SelectTile(k=16, capacity=64, chunk=32, step=16, warps=1)


def brute(scores, visible, k):
    """By Python's own sort, row by row."""
    rows = []
    for line, bound in zip(scores.tolist(), visible.tolist(), strict=True):
        usable = [i for i, x in enumerate(line[:bound]) if x == x and x > float("-inf")]
        best = sorted(sorted(usable, key=lambda i: (-line[i], i))[:k])
        rows.append(best + [-1] * (k - len(best)))
    return torch.tensor(rows, dtype=torch.int32).reshape(len(rows), k)


def selected(scores, visible, tile, cuts=(), segments=1, monkeypatch=None):
    """Selection in runs cut at some positions, each split into segments."""
    if segments > 1:
        monkeypatch.setattr(launch, "segment_count", lambda rows, length: min(segments, length))
    selection = launch.Selection(scores.shape[0], tile, scores.device)
    edges = [0, *cuts, scores.shape[1]]
    for begin, end in itertools.pairwise(edges):
        selection.add(launch.Source(scores[:, begin:end], visible, first=begin))
    return selection.positions().cpu()


def everyone(scores):
    return torch.full((scores.shape[0],), scores.shape[1], dtype=torch.int32, device=scores.device)


KINDS = {
    "random": lambda shape, g: torch.randn(shape, generator=g, device=g.device),
    "few values": lambda shape, g: torch.randint(
        -2, 2, shape, generator=g, device=g.device
    ).float(),
    "all equal": lambda shape, g: torch.full(shape, -0.25, device=g.device),
    "ascending": lambda shape, g: torch.arange(float(shape[1]), device=g.device).repeat(
        shape[0], 1
    ),
    "descending": lambda shape, g: (
        -torch.arange(float(shape[1]), device=g.device).repeat(shape[0], 1)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 3, 37, 101])
def test_selection_is_that_of_a_stable_sort(kind, length, generator):
    scores = KINDS[kind]((3, length), generator)
    visible = everyone(scores)
    visible[0] = length // 2
    want = brute(scores, visible, 4)
    assert torch.equal(selected(scores, visible, TINY), want)
    assert torch.equal(reference.top_positions(scores, visible, k=4).cpu(), want)


@pytest.mark.parametrize("kind", ["few values", "ascending"])
@pytest.mark.parametrize("cuts", [(1,), (16, 32), (5, 6, 40), tuple(range(7, 70, 7))])
def test_blocks_of_keys_do_not_change_the_selection(kind, cuts, generator):
    scores = KINDS[kind]((2, 71), generator)
    visible = everyone(scores)
    visible[0] = 33
    assert torch.equal(selected(scores, visible, SMALL, cuts), brute(scores, visible, 16))


@pytest.mark.parametrize("segments", [2, 7])
@pytest.mark.parametrize("cuts", [(), (40,)])
def test_segments_do_not_change_the_selection(segments, cuts, generator, monkeypatch):
    scores = KINDS["few values"]((2, 79), generator)
    visible = everyone(scores)
    visible[1] = 59
    found = selected(scores, visible, TINY, cuts, segments, monkeypatch)
    assert torch.equal(found, brute(scores, visible, 4))


def test_what_is_never_selected(device):
    nan, inf = float("nan"), float("inf")
    scores = torch.tensor(
        [
            [nan, 1.0, -inf, nan, 2.0, -inf, 0.0, -5.0],
            [-0.0, 0.0, -0.0, 0.0, -0.0, 0.0, inf, -3.4e38],
            [nan] * 8,
            [-1e-45, 1e-45, 0.0, -1e-45, 0.0, 1e-45, 1e-45, 1e-45],
        ],
        device=device,
    )
    found = selected(scores, everyone(scores), TINY)
    # NaN and -inf never; -0 equals +0, so that position decides; subnormals are told apart.
    assert found.tolist() == [[1, 4, 6, 7], [0, 1, 2, 6], [-1] * 4, [1, 5, 6, 7]]


def test_fewer_keys_than_k_and_the_shipped_tile(device, generator):
    scores = torch.randn((2, 2600), generator=generator, device=device)
    visible = torch.tensor([300, 2600], dtype=torch.int32, device=device)
    found = top_positions(scores, visible)
    assert torch.equal(found.cpu(), brute(scores, visible, 512))
    assert found[0].tolist() == [*range(300), *([-1] * 212)]


def test_rows_that_see_nothing_and_empty_inputs(device):
    scores = torch.randn((2, 5), device=device)
    blind = torch.zeros(2, dtype=torch.int32, device=device)
    assert (top_positions(scores, blind) == -1).all()
    assert top_positions(scores[:0], blind[:0]).shape == (0, 512)
    assert (top_positions(scores[:, :0], blind) == -1).all()


def test_a_row_past_two_gib_is_addressed(device, generator):
    # In elements past 2^31 on a GPU, in bytes on a CPU, where such a storage is never touched.
    rows, stride = 3, 1 << (30 if device.type == "cuda" else 28)
    storage = torch.UntypedStorage(4 * (2 * stride + 64), device=device)
    far = torch.empty(0, device=device).set_(storage).as_strided((rows, 40), (stride, 1))
    near = torch.randn((rows, 40), generator=generator, device=device)
    far.copy_(near)
    assert torch.equal(selected(far, everyone(far), TINY), brute(near, everyone(near), 4))


def batch(generator, lengths=(45, 7, 33), starts=(0, 3, 3, 5), slots=8):
    """Rows of three requests, the second without rows, and their paged keys."""
    device = generator.device
    rows = draw_rows(starts[-1], max(lengths), generator)
    row_starts = torch.tensor(starts, dtype=torch.int32, device=device)
    for request, length in enumerate(lengths):
        rows[3][starts[request] : starts[request + 1]].clamp_(max=length)
    keys = paged([draw_keys(n, generator) for n in lengths], slots=slots, generator=generator)
    return rows, keys, row_starts


def streamed(rows, keys, row_starts, budget, tile=TINY, count=None):
    lines = score_rows(*rows, row_starts)
    target = target_of(rows[0])
    score_tile = tile_for(target.family, lines.rows)
    work = stream.Work(lines, keys, count or keys.capacity, budget, score_tile, target)
    return stream.select_over_keys(work, (stream.Sink(tile, rows[3]),))[0]


def tight(rows, keys):
    """A budget that allows exactly so many rows of so many keys at a time."""
    return Budget(score_bytes=4 * rows * keys, block_keys=keys)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("block", [13, 16, 48])
def test_row_chunks_and_key_blocks_do_not_change_the_result(chunk, block, generator):
    rows, keys, row_starts = batch(generator)
    want = reference.index_topk(*rows[:3], keys, rows[3], row_starts=row_starts, k=4)
    assert torch.equal(streamed(rows, keys, row_starts, tight(chunk, block)), want)


def test_whole_op_on_a_ragged_batch(generator):
    rows, keys, row_starts = batch(generator)
    want = reference.index_topk(*rows[:3], keys, rows[3], row_starts=row_starts)
    found = index_topk(*rows[:3], keys, rows[3], row_starts=row_starts)
    assert torch.equal(found, want)
    assert (found[:, -1] == -1).all()


def test_no_requests_no_rows_no_keys(device, generator):
    rows, keys, row_starts = batch(generator, starts=(0, 0, 0, 0))
    assert index_topk(*rows[:3], keys, rows[3], row_starts=row_starts).shape == (0, 512)
    rows = draw_rows(2, 5, generator)
    none = KeyRecords.packed(draw_keys(0, generator))
    assert (index_topk(*rows[:3], none, rows[3]) == -1).all()


def test_permuted_and_repeated_rows_select_the_same(generator):
    rows = draw_rows(5, 41, generator)
    keys = KeyRecords.packed(draw_keys(41, generator))
    order = torch.tensor([3, 1, 4, 0, 2, 3], device=generator.device)
    moved = [tensor[order].contiguous() for tensor in rows]
    budget = tight(2, 16)
    assert torch.equal(
        streamed(moved, keys, None, budget), streamed(rows, keys, None, budget)[order]
    )


@pytest.mark.parametrize("chunk", [1, 5])
def test_candidates_select_as_a_mask_would(chunk, device, generator):
    rows, keys, row_starts = batch(generator)
    blocks = torch.full((5, 4), -1, dtype=torch.int32, device=device)
    for row, some in enumerate([(0, 2, 3), (1,), (), (0, 1, 2, 4), (4, 5)]):
        blocks[row, : len(some)] = torch.tensor(some, dtype=torch.int32)
    lines = score_rows(*rows, row_starts)
    target = target_of(rows[0])
    work = stream.Work(
        lines, keys, keys.capacity, tight(chunk, 32), tile_for(target.family, 5), target
    )
    given = (*rows[:3], keys, rows[3])
    want = reference.candidate_topk(*given, blocks=blocks, row_starts=row_starts, k=4)
    assert torch.equal(stream.select_over_blocks(work, blocks, 8, TINY), want)
    whole = candidate_topk(*given, blocks=blocks, row_starts=row_starts)
    assert torch.equal(whole[:, :4], want) or (whole[:, 4] >= 0).any()
    assert torch.equal(
        whole, reference.candidate_topk(*given, blocks=blocks, row_starts=row_starts)
    )


def test_slots_of_positions(device, generator):
    pool = torch.randint(0, 1 << 20, (6, 64), dtype=torch.int32, device=device, generator=generator)
    requests = torch.tensor([5, 0, 2], dtype=torch.int32, device=device)
    row_starts = torch.tensor([0, 2, 2, 3], dtype=torch.int32, device=device)
    positions = torch.tensor(
        [[0, 3, 31], [1, 2, -1], [-1, -1, -1]], dtype=torch.int32, device=device
    )
    slot_map = SlotMap(pool, requests, ratio=2)
    found = slots_of(positions, slot_map, row_starts=row_starts)
    assert found[0].tolist() == [int(pool[5, 2 * i]) // 2 for i in (0, 3, 31)]
    assert torch.equal(found, reference.slots_of(positions, slot_map, row_starts=row_starts))
    alone = slots_of(positions[:1], SlotMap(pool, requests[:1], ratio=1))
    assert alone.tolist() == [[int(pool[5, i]) for i in (0, 3, 31)]]


def test_budgets_bound_rows_and_keys():
    budget = Budget()
    assert budget.keys_at_a_time(4096, 262_144) == 32_768
    assert budget.rows_at_a_time(32_768) == 4096
    assert budget.keys_at_a_time(6, 262_144) == 262_144
    assert budget.keys_at_a_time(96, 1 << 20) == 1 << 20
    assert budget.keys_at_a_time(4096, 100) == 100
    assert list(spans(7, 3)) == [(0, 3), (3, 6), (6, 7)]
    with pytest.raises(KernelArgumentError, match="budget of 8 bytes, expected at least 131072"):
        Budget(score_bytes=8)
    assert segment_count(4096, 1 << 20) == 1
    assert segment_count(6, 262_144) == 16
    assert segment_count(1, 100) == 1
    assert segment_count(96, 262_144) == 5
    assert (key_tile(64), key_tile(65)) == (KEYS_OF_FEW, KEYS)
    with pytest.raises(ValueError, match="capacity 8, expected at least 4"):
        SelectTile(k=4, capacity=8, chunk=8, step=8, warps=1)


def test_what_does_not_fit_is_refused(device, generator):
    rows = draw_rows(2, 5, generator)
    keys = KeyRecords.packed(draw_keys(5, generator))
    scores = torch.randn((2, 5), device=device)
    with pytest.raises(KernelArgumentError, match=r"visible: shape \[2\], expected \[1\]"):
        top_positions(scores[:1], rows[3])
    with pytest.raises(KernelArgumentError, match="scores: dtype float64, expected float32"):
        top_positions(scores.double(), rows[3])
    blocks = torch.zeros((2, 3), dtype=torch.int64, device=device)
    with pytest.raises(KernelArgumentError, match="blocks: dtype int64"):
        candidate_topk(*rows[:3], keys, rows[3], blocks=blocks)
    pool = torch.zeros((1, 4), dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="ratio = 0"):
        slots_of(pool, SlotMap(pool, pool[0, :1], ratio=0))
    assert is_supported(scores)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: real shapes")


@GPU
@pytest.mark.parametrize(("rows", "length"), [(6, 262_144), (97, 50_021), (1031, 40_009)])
@pytest.mark.parametrize("kind", KINDS)
def test_real_shapes_equal_a_stable_sort(rows, length, kind, device, generator):
    scores = KINDS[kind]((rows, length), generator)
    visible = torch.randint(
        0, length + 1, (rows,), dtype=torch.int32, device=device, generator=generator
    )
    assert torch.equal(top_positions(scores, visible), reference.top_positions(scores, visible))


@GPU
def test_whole_op_at_a_real_shape_within_its_memory(device, generator):
    rows = draw_rows(4096, 65_536, generator)
    rows[3].copy_(torch.arange(61_441, 65_537, dtype=torch.int32, device=device))
    keys = paged([draw_keys(65_536, generator)], slots=64, generator=generator)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = index_topk(*rows[:3], keys, rows[3])
    assert torch.cuda.max_memory_allocated() - before <= 1 << 30
    assert torch.equal(found, index_topk(*rows[:3], keys, rows[3]))
    for some in (slice(0, 16), slice(2048, 2064), slice(4080, 4096)):
        part = [tensor[some] for tensor in rows]
        want = reference.index_topk(*part[:3], keys, part[3])
        assert torch.equal(found[some], want)


@GPU
def test_a_graph_replays_on_new_inputs(device, generator):
    rows = draw_rows(6, 9000, generator)
    keys = KeyRecords.packed(draw_keys(9000, generator))
    index_topk(*rows[:3], keys, rows[3])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = index_topk(*rows[:3], keys, rows[3])
    for tensor, fresh in zip(rows, draw_rows(6, 9000, generator), strict=True):
        tensor.copy_(fresh)
    graph.replay()
    assert torch.equal(found, reference.index_topk(*rows[:3], keys, rows[3]))
    assert KEYS.k == found.shape[1]
