"""The plan of routed experts: routes by expert, capacities and tiles, ranks' shares of experts."""

import dataclasses
import itertools

import pytest
import torch
from sparkserve_kernels.moe_w4a8 import launch, plan, reference
from sparkserve_kernels.moe_w4a8.api import Geometry, remap_experts, route_plan
from sparkserve_kernels.moe_w4a8.tiles import TABLE, tile_for

from tests.kernels.experts import FAMILIES, problem
from tests.kernels.numeric import relative_l2, same_bits

# --- the planner ---


@pytest.mark.parametrize(
    ("rows", "slots", "experts", "tile"),
    [
        (0, 6, 4, 16),
        (1, 1, 1, 1),
        (1, 6, 384, 16),
        (7, 3, 5, 2),
        (31, 6, 3, 16),
        (97, 6, 5, 8),
        (193, 3, 11, 64),
    ],
)
def test_the_planner_equals_its_reference(rows, slots, experts, tile, generator):
    ids = torch.randint(
        -2, experts + 2, (rows, slots), generator=generator, dtype=torch.int32,
        device=generator.device,
    )  # fmt: skip
    got = route_plan(ids, experts, tile)
    order, table = reference.route_plan(ids, experts, tile)
    if rows == 0:
        assert got.order.shape == (0,)
        assert got.table.shape == (3, 0)
        return
    assert same_bits(got.order, order)
    assert same_bits(got.table, table)


@pytest.mark.parametrize("rows", [40, 120])
def test_a_plan_holds_every_valid_route_once(rows, generator):
    experts, tile = 6, 8
    ids = torch.randint(
        -1, experts, (rows, 6), generator=generator, dtype=torch.int32, device=generator.device
    )
    got = route_plan(ids, experts, tile)
    flat, order = ids.flatten().tolist(), got.order.tolist()
    seen = []
    for expert, begin, count in got.table.T.tolist():
        assert 0 <= count <= tile
        routes = order[begin : begin + count]
        assert all(flat[route] == expert for route in routes)
        seen += routes
    assert sorted(seen) == [route for route, expert in enumerate(flat) if expert >= 0]


def test_a_plan_of_one_expert_and_of_none(device):
    one = route_plan(torch.zeros((110, 6), dtype=torch.int32, device=device), 4, 64)
    assert one.table[2].sum() == 660
    assert one.table[2].max() == 64
    none = route_plan(torch.full((110, 6), -1, dtype=torch.int32, device=device), 4, 64)
    assert int(none.table.abs().sum()) == 0


def test_a_plan_of_strided_ids(generator):
    ids = torch.randint(
        0, 9, (6, 20), generator=generator, dtype=torch.int32, device=generator.device
    )
    for view in (ids[:, ::3], ids.T[:, :4], ids[::2, 1:7]):
        got, want = route_plan(view, 9, 4), route_plan(view.contiguous(), 9, 4)
        assert same_bits(got.order, want.order)
        assert same_bits(got.table, want.table)


def test_capacities_hold_every_verify_and_draft_batch():
    for batch, rows in itertools.product((1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16), (5, 6)):
        assert plan.capacity_for(batch * rows) == batch * rows
    assert plan.capacity_for(1) == 5
    assert plan.capacity_for(97) == 128
    assert plan.capacity_for(129) == 256
    assert plan.capacity_for(5000) == 4096
    assert plan.chunks(0) == ()
    assert plan.chunks(4096) == ((0, 4096),)
    assert plan.chunks(8195) == ((0, 4096), (4096, 8192), (8192, 8195))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_capacity_has_a_tile(family):
    for capacity in plan.CAPACITIES:
        assert tile_for(capacity, family) in [tile for _, tile in TABLE[family]]


# --- expert parallelism ---


def test_remapped_slots_never_stream_another_expert(device):
    local_of = torch.tensor([-1, 2, -1, 0, 1], dtype=torch.int32, device=device)
    ids = torch.tensor([[3, 0, 1], [2, 0, -1], [7, 4, 2]], dtype=torch.int32, device=device)
    weights = torch.arange(1.0, 10.0, device=device).reshape(3, 3)
    got, scaled = remap_experts(ids, weights, local_of)
    assert got.tolist() == [[0, 0, 2], [0, 0, 0], [1, 1, 1]]
    assert scaled.tolist() == [[1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [0.0, 8.0, 0.0]]
    foreign = torch.zeros_like(ids)
    got, scaled = remap_experts(foreign, weights, local_of)
    assert int(got.abs().sum()) == 0
    assert float(scaled.sum()) == 0.0


def test_ranks_together_give_the_whole(generator):
    given = problem(5, Geometry(4, 2, 128, 32), generator)
    total = torch.zeros_like(given.exact())
    for rank in range(2):
        local_of = torch.tensor(
            [expert // 2 if expert % 2 == rank else -1 for expert in range(4)],
            dtype=torch.int32,
            device=given.x.device,
        )
        ids, weights = remap_experts(given.ids, given.weights, local_of)
        e = given.experts
        mine = launch.Experts(
            *(tensor[rank::2].contiguous() for tensor in (e.w13, e.s13, e.w2, e.s2))
        )
        part = dataclasses.replace(given, ids=ids, weights=weights, experts=mine)
        total += part.call().double()
    assert relative_l2(total, given.exact()) < 6e-3
