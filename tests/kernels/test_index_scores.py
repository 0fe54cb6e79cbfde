"""Indexer scores: exact against torch, whatever the tile, the layout of the keys and the batch."""

from __future__ import annotations

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.index_quant.api import index_quant, index_quant_to_pages
from sparkserve_kernels.index_scores import launch, reference
from sparkserve_kernels.index_scores.api import (
    KeyPages,
    KeyRecords,
    candidate_scores,
    index_scores,
    is_supported,
    score_rows,
)
from sparkserve_kernels.index_scores.tiles import ScoreTile
from sparkserve_kernels.target import HOPPER, Target, target_of

from tests.kernels.index_data import draw_keys, draw_rows, paged
from tests.kernels.numeric import relative_l2, same_bits

TILES = {
    "narrow": ScoreTile(keys=16, rows=2, warps=4, stages=2, wide=False),
    "wide": ScoreTile(keys=32, rows=4, warps=4, stages=2, wide=True),
}


def launched(rows, keys, count, tile, target, first=0):
    """Scores through one given tile and path."""
    queries, scales, weights, visible = rows
    lines = score_rows(queries, scales, weights, visible, None).widened(tile, target)
    scores = torch.full((len(visible), count), -torch.inf, device=queries.device)
    launch.launch_scores(lines, keys, scores, first, tile=tile, target=target)
    return scores


def paths(device):
    """The families whose kernels can run here."""
    if device.type == "cuda":
        return [target_of(torch.empty(0, device=device))]
    return [Target((12, 1), interpreted=True), Target(HOPPER.capability, interpreted=True)]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("family", [0, 1], ids=["first path", "second path"])
def test_scores_have_the_reference_bits(tile, family, device, generator):
    if family >= len(paths(device)):
        pytest.skip("needs the interpreter: a GPU runs its own path only")
    rows = draw_rows(7, 37, generator)
    records = draw_keys(37, generator)
    found = launched(rows, KeyRecords.packed(records), 37, TILES[tile], paths(device)[family])
    want = reference.index_scores(*rows[:3], KeyRecords.packed(records), rows[3])
    assert same_bits(found, want)
    oracle = reference.index_scores(
        *rows[:3], KeyRecords.packed(records), rows[3], dtype=torch.float64
    )
    seen = torch.isfinite(oracle)
    assert torch.equal(seen, torch.isfinite(found))
    assert relative_l2(found[seen], oracle[seen]) < 1e-6


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (3, 64), (6, 131)])
def test_shipped_path_by_shape(rows, count, device, generator):
    lines = draw_rows(rows, count, generator, dtype=torch.bfloat16)
    keys = KeyRecords.packed(draw_keys(count, generator))
    assert same_bits(
        index_scores(*lines[:3], keys, lines[3]), reference.index_scores(*lines[:3], keys, lines[3])
    )


def test_a_score_worked_by_hand(device):
    queries = torch.zeros((1, 32, 64), dtype=torch.uint8, device=device)
    scales = torch.full((1, 32, 4), 127, dtype=torch.uint8, device=device)
    weights = torch.zeros((1, 32), device=device)
    records = torch.zeros((2, 68), dtype=torch.uint8, device=device)
    records[:, 64:] = 127
    # Head 3: 6 at element 0 and 1.5 at element 33; head 5: -4 at element 1.
    queries[0, 3, 0], queries[0, 3, 16], scales[0, 3, 1] = 0x07, 0x30, 128
    queries[0, 5, 0] = 0xE0
    weights[0, 3], weights[0, 5] = 0.5, -2.0
    # Key 0: 1 at element 0, 3 at element 33 (scale 4); key 1: -2 at element 1.
    records[0, 0], records[0, 16], records[0, 65] = 0x02, 0x50, 129
    records[1, 0] = 0xC0
    visible = torch.tensor([2], dtype=torch.int32, device=device)
    found = index_scores(queries, scales, weights, KeyRecords.packed(records), visible)
    # Key 0: 0.5 * (6*1 + 3*12) = 21; key 1: -2 * (-4*-2) = -16.
    assert found.tolist() == [[21.0, -16.0]]


def test_pages_records_and_row_chunks_give_the_same_bits(device, generator):
    starts = torch.tensor([0, 2, 2, 5], dtype=torch.int32, device=device)
    lengths = [21, 5, 40]
    lists = [draw_keys(length, generator) for length in lengths]
    rows = draw_rows(5, 40, generator)
    rows[3][:2].clamp_(max=21)
    keys = paged(lists, slots=8, generator=generator, padding=24)
    whole = index_scores(*rows[:3], keys, rows[3], row_starts=starts)
    assert whole.shape == (5, 40)
    assert same_bits(whole, reference.index_scores(*rows[:3], keys, rows[3], row_starts=starts))
    for begin, end, request in ((0, 2, 0), (2, 5, 2)):
        part = [tensor[begin:end] for tensor in rows]
        alone = index_scores(*part[:3], KeyRecords.packed(lists[request]), part[3])
        assert same_bits(alone, whole[begin:end, : lengths[request]])


def test_a_permutation_of_rows_permutes_the_scores(device, generator):
    rows = draw_rows(7, 19, generator)
    keys = KeyRecords.packed(draw_keys(19, generator))
    order = torch.randperm(7, generator=generator, device=device)
    moved = [tensor[order].contiguous() for tensor in rows]
    found = index_scores(*moved[:3], keys, moved[3])
    assert same_bits(found, index_scores(*rows[:3], keys, rows[3])[order])


def test_blocks_of_keys_join_to_the_whole(device, generator):
    rows = draw_rows(3, 40, generator)
    keys = KeyRecords.packed(draw_keys(40, generator))
    tile, target = TILES["narrow"], paths(device)[0]
    parts = [launched(rows, keys, 8, tile, target, first=first) for first in range(0, 40, 8)]
    assert same_bits(torch.cat(parts, dim=1), launched(rows, keys, 40, tile, target))


def test_a_launch_writes_only_its_rows_and_columns(device, generator):
    starts = torch.tensor([0, 3, 3, 7], dtype=torch.int32, device=device)
    rows = draw_rows(7, 24, generator)
    keys = paged([draw_keys(24, generator) for _ in range(3)], slots=8, generator=generator)
    lines = score_rows(*rows, starts)
    whole = reference.index_scores(*rows[:3], keys, rows[3], row_starts=starts)
    target = paths(device)[0]
    for begin, end in ((0, 2), (2, 5), (4, 7), (6, 7)):
        around = torch.full((end - begin + 2, 30), 7.0, device=device)
        window = around[1:-1, 5:18]
        part = lines.part(begin, end).widened(TILES["wide"], target)
        launch.launch_scores(part, keys, window, 8, tile=TILES["wide"], target=target)
        want = whole[begin:end, 8:21]
        # Tiles that no row sees keep what they held.
        assert same_bits(window, torch.where(window == 7.0, window, want))
        assert torch.equal(torch.isfinite(want), torch.isfinite(window) & (window != 7.0))
        around[1:-1, 5:18] = 7.0
        assert (around == 7.0).all()


def test_what_the_quantiser_writes_is_what_is_scored(device, generator):
    q = torch.randn((3, 32, 128), device=device, generator=generator).bfloat16()
    k = torch.randn((20, 128), device=device, generator=generator).bfloat16()
    weights = torch.rand((3, 32), device=device, generator=generator)
    visible = torch.tensor([20, 7, 1], dtype=torch.int32, device=device)
    payload, scales = index_quant(q)
    pages = torch.full((4, 8 * 68), 0xFF, dtype=torch.uint8, device=device)
    table = torch.tensor([[3, 0, 2]], dtype=torch.int32, device=device)
    slots = (table[0].long()[:, None] * 8 + torch.arange(8, device=device)).flatten()[:20]
    index_quant_to_pages(k, slots, pages, 8)
    keys = KeyPages(pages, table, slots=8)
    found = index_scores(payload, scales, weights, keys, visible, key_count=20)
    assert same_bits(
        found, index_scores(payload, scales, weights, KeyRecords(*index_quant(k)), visible)
    )
    products = torch.einsum("thd,nd->tnh", q.double(), k.double()).clamp_min(0)
    exact = (products * weights[:, None].double()).sum(-1)
    seen = torch.isfinite(found)
    # Two roundings to four bits on either side.
    assert 0.01 < relative_l2(found[seen], exact[seen]) < 0.15


def test_candidate_scores_are_those_of_all_keys(device, generator):
    starts = torch.tensor([0, 1, 1, 3], dtype=torch.int32, device=device)
    lists = [draw_keys(length, generator) for length in (29, 8, 43)]
    rows = draw_rows(3, 43, generator)
    rows[3][0] = 29
    blocks = torch.tensor(
        [[0, 2, 3, -1, -1], [1, 4, 5, -1, 0], [-1, -1, -1, -1, -1]],
        dtype=torch.int32,
        device=device,
    )
    keys = paged(lists, slots=16, generator=generator)
    given = (*rows[:3], keys, rows[3])
    found = candidate_scores(*given, blocks=blocks, row_starts=starts)
    want = reference.candidate_scores(*given, blocks=blocks, row_starts=starts)
    assert same_bits(found, want)
    assert torch.isneginf(found[2]).all()


def test_candidates_past_the_last_key_are_none_whatever_a_row_claims_to_see(device, generator):
    records = draw_keys(48, generator)
    rows = draw_rows(2, 13, generator)
    rows[3][:] = 48
    blocks = torch.tensor([[0, 1, 2, 5], [1, 3, 4, -1]], dtype=torch.int32, device=device)
    given = (*rows[:3], KeyRecords.packed(records[:13]), rows[3])
    found = candidate_scores(*given, blocks=blocks)
    assert same_bits(found, reference.candidate_scores(*given, blocks=blocks))
    assert torch.isfinite(found).sum(dim=1).tolist() == [13, 5]


# numpy, on which the interpreter computes, warns of NaN.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_record_with_a_scale_of_nan_scores_nan(device, generator):
    records = draw_keys(16, generator)
    records[5, 64:] = 255
    rows = draw_rows(3, 16, generator)
    rows[3][:] = 16
    given = (*rows[:3], KeyRecords.packed(records))
    found = index_scores(*given, rows[3])
    assert torch.isnan(found).nonzero().tolist() == [[0, 5], [1, 5], [2, 5]]
    blocks = torch.tensor([[0], [0], [0]], dtype=torch.int32, device=device)
    assert torch.equal(
        torch.isnan(candidate_scores(*given, rows[3], blocks=blocks)).nonzero(),
        torch.isnan(found).nonzero(),
    )


def test_a_block_whose_keys_pass_two_to_the_31_is_none(device, generator):
    keys = KeyRecords.packed(draw_keys(16, generator))
    rows = draw_rows(1, 16, generator)
    blocks = torch.tensor([[0, 1, 2, 1 << 28, 2**31 - 1]], dtype=torch.int32, device=device)
    found = candidate_scores(*rows[:3], keys, rows[3], blocks=blocks)
    assert same_bits(found[:, :16], index_scores(*rows[:3], keys, rows[3]))
    assert torch.isneginf(found[:, 16:]).all()


def test_no_rows_no_keys_and_rows_that_see_nothing(device, generator):
    keys = KeyRecords.packed(draw_keys(5, generator))
    rows = draw_rows(2, 5, generator)
    none = [tensor[:0] for tensor in rows]
    assert index_scores(*none[:3], keys, none[3]).shape == (0, 5)
    empty = KeyRecords(keys.payload[:0], keys.scales[:0])
    assert index_scores(*rows[:3], empty, rows[3]).shape == (2, 0)
    blind = torch.zeros(2, dtype=torch.int32, device=device)
    assert torch.isneginf(index_scores(*rows[:3], keys, blind)).all()


def test_strides_of_records_and_queries(device, generator):
    records = draw_keys(11, generator)
    wide = torch.full((11, 96), 0xFF, dtype=torch.uint8, device=device)
    wide[:, :68] = records
    rows = draw_rows(3, 11, generator)
    packed = torch.cat([rows[0], rows[1]], dim=2)
    strided = index_scores(
        packed[..., :64], packed[..., 64:], rows[2], KeyRecords.packed(wide[:, :68]), rows[3]
    )
    assert same_bits(strided, index_scores(*rows[:3], KeyRecords.packed(records), rows[3]))


def test_pages_past_two_gib_are_addressed(device, generator):
    record = draw_keys(8, generator)
    small = paged([record], slots=8, generator=generator)
    stride = 1 << 28
    far = torch.empty(0, dtype=torch.uint8, device=device).set_(
        torch.UntypedStorage(9 * stride + 8 * 68, device=device)
    )
    pages = far.as_strided((10, 8 * 68), (stride, 1))
    pages[9] = small.pages[int(small.table[0, 0])]
    table = torch.full((1, 1), 9, dtype=torch.int32, device=device)
    rows = draw_rows(2, 8, generator)
    found = index_scores(*rows[:3], KeyPages(pages, table, slots=8), rows[3])
    assert same_bits(found, index_scores(*rows[:3], KeyRecords.packed(record), rows[3]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: 8 GiB of scores")
def test_scores_past_two_to_the_31_are_addressed(device, generator):
    rows = draw_rows(3, 20, generator)
    keys = KeyRecords.packed(draw_keys(20, generator))
    target = paths(device)[0]
    far = torch.empty(0, device=device).set_(
        torch.UntypedStorage(4 * ((2 << 30) + 64), device=device)
    )
    window = far.as_strided((3, 20), (1 << 30, 1)).fill_(-torch.inf)
    lines = score_rows(*rows, None).widened(TILES["wide"], target)
    launch.launch_scores(lines, keys, window, 0, tile=TILES["wide"], target=target)
    assert same_bits(window, reference.index_scores(*rows[:3], keys, rows[3]))


def test_what_does_not_fit_is_refused(device, generator):
    rows = draw_rows(2, 5, generator)
    keys = KeyRecords.packed(draw_keys(5, generator))
    with pytest.raises(KernelArgumentError, match=r"queries: shape \[2, 32, 63\]"):
        index_scores(rows[0][..., :63], *rows[1:3], keys, rows[3])
    with pytest.raises(KernelArgumentError, match="visible: dtype int64, expected int32"):
        index_scores(*rows[:3], keys, rows[3].long())
    with pytest.raises(KernelArgumentError, match="key_count = 6, expected 0 to 5"):
        index_scores(*rows[:3], keys, rows[3], key_count=6)
    starts = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="2 requests, expected 1"):
        index_scores(*rows[:3], keys, rows[3], row_starts=starts)
    narrow = KeyPages(
        draw_keys(5, generator), torch.zeros((1, 1), dtype=torch.int32, device=device), 2
    )
    with pytest.raises(KernelArgumentError, match="68 bytes per page, expected at least 136"):
        index_scores(*rows[:3], narrow, rows[3])
    assert is_supported(rows[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs")
def test_a_graph_replays_on_new_inputs(device, generator):
    rows = draw_rows(12, 900, generator)
    keys = KeyRecords.packed(draw_keys(900, generator))
    index_scores(*rows[:3], keys, rows[3])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = index_scores(*rows[:3], keys, rows[3])
    for tensor, fresh in zip(rows, draw_rows(12, 900, generator), strict=True):
        tensor.copy_(fresh)
    graph.replay()
    assert same_bits(found, reference.index_scores(*rows[:3], keys, rows[3]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: large shapes")
@pytest.mark.parametrize("rows", [6, 64, 65, 1031])
def test_shipped_tiles_at_real_shapes(rows, device, generator):
    count = 20011
    lines = draw_rows(rows, count, generator)
    keys = paged([draw_keys(count, generator)], slots=64, generator=generator)
    found = index_scores(*lines[:3], keys, lines[3], key_count=count)
    want = reference.index_scores(*lines[:3], keys, lines[3], key_count=count)
    assert same_bits(found, want)
