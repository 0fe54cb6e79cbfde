"""Routed experts against float64 and hand-worked values, and what is claimed bit for bit."""

import dataclasses
import itertools

import pytest
import torch
import triton
import triton.language as tl
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.moe_w4a8 import launch, plan, reference
from sparkserve_kernels.moe_w4a8.api import (
    Geometry,
    is_supported,
    make_scratch,
    moe_w4a8,
    remap_experts,
    route_plan,
)
from sparkserve_kernels.moe_w4a8.kernel_hopper import decode, decode_codes
from sparkserve_kernels.moe_w4a8.tiles import TABLE, tile_for
from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant
from sparkserve_kernels.numerics.elements import e2m1_decode

from tests.kernels.numeric import relative_l2, same_bits

GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs, real sizes or inline assembly"
)
FAMILIES = ("spark", "hopper")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Inputs of one call."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    experts: launch.Experts

    @property
    def geometry(self):
        w13, w2 = self.experts.w13, self.experts.w2
        return Geometry(w13.shape[0], self.ids.shape[1], self.x.shape[1], w2.shape[2] * 2)

    def call(self, **options):
        e = self.experts
        return moe_w4a8(self.x, self.ids, self.weights, e.w13, e.s13, e.w2, e.s2, **options)

    def exact(self, dtype=torch.float64, **options):
        e = self.experts
        tensors = (self.x, self.ids, self.weights, e.w13, e.s13, e.w2, e.s2)
        return reference.moe_w4a8(*tensors, dtype=dtype, **options)

    def rows(self, index):
        return dataclasses.replace(
            self, x=self.x[index], ids=self.ids[index], weights=self.weights[index]
        )


def problem(rows, geometry, generator, lowest=-1):
    """Random weights of every code, scales over six binades, ids that may lie outside."""
    device = generator.device
    experts, slots, hidden, inter = dataclasses.astuple(geometry)

    def draw(low, high, shape, dtype=torch.uint8):
        return torch.randint(low, high, shape, generator=generator, device=device, dtype=dtype)

    x = torch.randn((rows, hidden), generator=generator, device=device).bfloat16()
    return Problem(
        x=x,
        ids=draw(lowest, experts, (rows, slots), torch.int32),
        weights=torch.rand((rows, slots), generator=generator, device=device) * 1.5,
        experts=launch.Experts(
            draw(0, 256, (experts, 2 * inter, hidden // 2)),
            draw(114, 120, (experts, 2 * inter, hidden // 32)),
            draw(0, 256, (experts, hidden, inter // 2)),
            draw(114, 120, (experts, hidden, inter // 32)),
        ),
    )


def run(given, family, capacity=None, x_scales=None, limit=10.0):
    """The kernels of one family at one bucket, whatever the device's own is."""
    count = given.x.shape[0]
    capacity = plan.capacity_for(count) if capacity is None else capacity
    scratch = launch.allocate(count, given.geometry, given.x.device)
    out = torch.empty_like(given.x, dtype=torch.bfloat16)
    how = launch.Launch(
        given.geometry, tile_for(capacity, family), limit, given.x.device.type == "cpu"
    )
    launch.run(
        launch.Rows(given.x, x_scales, given.ids, given.weights), given.experts, out, scratch, how
    )
    return out


SMALL = Geometry(experts=4, slots=2, hidden=128, inter=64)


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


# --- values ---


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("rows", "geometry"),
    [
        (1, Geometry(1, 1, 128, 32)),
        (6, Geometry(3, 6, 256, 96)),
        (2, Geometry(2, 1, 128, 576)),
        (23, Geometry(2, 1, 384, 32)),
    ],
    ids=str,
)
def test_it_equals_float64(family, rows, geometry, generator):
    given = problem(rows, geometry, generator)
    assert relative_l2(run(given, family), given.exact()) < 4e-3
    assert relative_l2(run(given, family), given.exact(torch.float32)) < 2e-3


def test_quantised_activations_cost_what_was_published(generator):
    """0.0467 is reported for weights in fp32 and activations that nobody rounds; 0.08 the gate."""
    given = problem(3, Geometry(2, 1, 256, 64), generator, 0)
    e, want = given.experts, torch.zeros_like(given.x, dtype=torch.float64)
    for token, expert in enumerate(given.ids[:, 0].tolist()):
        w13 = reference.dequantise(e.w13[expert], e.s13[expert]).double()
        up, gate = (w13 @ given.x[token].double()).chunk(2)
        gate = gate.clamp(max=10.0)
        inner = gate / (1.0 + (-gate).exp()) * up.clamp(-10.0, 10.0)
        outer = reference.dequantise(e.w2[expert], e.s2[expert]).double() @ inner
        want[token] = outer * given.weights[token, 0].double()
    assert 0.01 < relative_l2(given.call(), want) < 0.08


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bucket_of_many_rows(family, generator):
    given = problem(37, Geometry(1, 2, 128, 32), generator)
    many = run(given, family, 4096)
    assert relative_l2(many, given.exact()) < 4e-3
    assert relative_l2(many, run(given, family)) < 1e-3


def test_splitting_k_over_programs_changes_no_bit(generator):
    given = problem(5, Geometry(2, 2, 512, 32), generator)
    assert tile_for(6, "hopper").split
    assert not tile_for(96, "hopper").split
    assert same_bits(run(given, "hopper", 6), run(given, "hopper", 96))


@pytest.mark.parametrize("inter", [288, 768])
def test_slices_of_other_rank_counts(inter, generator):
    given = problem(1, Geometry(1, 1, 128, inter), generator, 0)
    for family in FAMILIES:
        assert relative_l2(run(given, family), given.exact()) < 4e-3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("gate", "up", "weight", "want"),
    [
        # silu(2) * 3 = 5.2848 -> 338.2 * 2^-6 -> code 352 = 5.5
        ((2.0, 0), (3.0, 0), 0.5, 2.75),
        # gate 12 is cut at 10, up -12 at -10: -99.995 -> -399.98 * 2^-2 -> code -384 = -96
        ((6.0, 1), (-6.0, 1), 1.0, -96.0),
        # gate has no lower bound: silu(-12) * 1 = -7.37e-5 -> -309.2 * 2^-22 -> code -320
        ((-6.0, 1), (1.0, 0), 1.0, -320 * 2.0**-22),
        # 0.84326 -> 431.75 * 2^-9 -> code 416; rounded to bf16 before it would be 448
        ((0.5, -1), (6.0, 0), 1.0, 0.8125),
    ],
)
def test_hand_worked_values(family, gate, up, weight, want, device):
    codes = {float(e2m1_decode(torch.tensor([code]))): code for code in range(16)}
    w13 = torch.zeros((1, 64, 64), dtype=torch.uint8, device=device)
    s13 = torch.full((1, 64, 4), 127, dtype=torch.uint8, device=device)
    w2 = torch.zeros((1, 128, 16), dtype=torch.uint8, device=device)
    s2 = torch.full((1, 128, 1), 127, dtype=torch.uint8, device=device)
    x = torch.zeros((1, 128), dtype=torch.bfloat16, device=device)
    # Column 33 is the high nibble of byte 16, in the second group; row 5 of the slice.
    x[0, 33] = 1.0
    for row, (code, exponent) in ((5, up), (37, gate)):
        w13[0, row, 16] = codes[code] << 4
        s13[0, row, 1] = 127 + exponent
    w2[0, 9, 2] = codes[1.0] << 4
    ids = torch.zeros((1, 1), dtype=torch.int32, device=device)
    weights = torch.full((1, 1), weight, device=device)
    got = run(Problem(x, ids, weights, launch.Experts(w13, s13, w2, s2)), family)
    assert float(got[0, 9]) == want
    got[0, 9] = 0
    assert int(torch.count_nonzero(got)) == 0


def test_slots_are_added_in_order(device):
    """In bf16 1 + 2^-9 is 1, so only a sum in fp32 keeps two of them; each route is bf16."""
    given = problem(1, Geometry(1, 3, 128, 32), torch.Generator(device=device).manual_seed(1), 0)
    single = dataclasses.replace(given, ids=given.ids[:, :1], weights=given.weights[:, :1])
    for weights in ((1.0, 1.0 / 512, 1.0 / 512), (3e38, -3e38, 1.0)):
        parts = []
        for weight in weights:
            parts.append(
                run(
                    dataclasses.replace(single, weights=torch.full((1, 1), weight, device=device)),
                    "spark",
                ).float()
            )
        want = ((parts[0] + parts[1]) + parts[2]).bfloat16()
        got = run(
            dataclasses.replace(given, weights=torch.tensor([weights], device=device)), "spark"
        )
        assert same_bits(got, want)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_nan_stays_in_its_token(family, generator):
    given = problem(3, SMALL, generator, 0)
    clean = run(given, family)
    given.x[1, 17] = float("nan")
    got = run(given, family)
    assert bool(got[1].isnan().all())
    assert same_bits(got[[0, 2]], clean[[0, 2]])


# --- bit for bit ---


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_rows_give_exactly_zero(family, generator):
    given = problem(6, SMALL, generator, 0)
    given.ids[4:] = -1
    given.x[4:] = float("nan")
    got = run(given, family)
    assert int(torch.count_nonzero(got[4:])) == 0
    assert same_bits(got[:4], run(given.rows(slice(0, 4)), family))


@pytest.mark.parametrize("family", FAMILIES)
def test_permuting_tokens_permutes_the_result(family, generator):
    given = problem(13, SMALL, generator)
    order = torch.randperm(13, generator=generator, device=generator.device)
    assert same_bits(run(given.rows(order), family), run(given, family)[order])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_does_not_depend_on_its_batch(family, generator):
    given = problem(12, SMALL, generator)
    whole = run(given, family)
    for rows in (1, 5, 6):
        assert same_bits(run(given.rows(slice(0, rows)), family), whole[:rows])
    assert same_bits(run(given, family), whole)


def test_both_planners_give_the_same_bits(generator, monkeypatch):
    given = problem(9, SMALL, generator)
    want = given.call()
    monkeypatch.setattr(plan, "PAIR_ROUTES", 8)
    assert same_bits(given.call(), want)


def test_chunks_give_the_same_bits(generator, monkeypatch):
    given = problem(7, SMALL, generator)
    want = given.call()
    monkeypatch.setattr(plan, "MAX_ROWS", 3)
    assert same_bits(given.call(), want)


def test_rows_that_are_quantised_already(generator):
    given = problem(5, SMALL, generator)
    q, scales = mxfp8_quant(given.x)
    for family in FAMILIES:
        ready = dataclasses.replace(given, x=q)
        assert same_bits(run(ready, family, x_scales=scales), run(given, family))
    wide = torch.zeros((5, 256), dtype=torch.uint8, device=q.device)
    wide[:, :128] = q.view(torch.uint8)
    strided = dataclasses.replace(given, x=wide[:, :128].view(torch.float8_e4m3fn))
    assert same_bits(strided.call(x_scales=scales), given.call())
    assert same_bits(given.call(), run(given, "spark" if q.device.type == "cpu" else "hopper"))


def test_strided_rows_ids_and_weights(generator):
    given = problem(5, SMALL, generator)
    want = given.call()
    x = torch.zeros((5, 200), dtype=torch.bfloat16, device=given.x.device)
    x[:, :128] = given.x
    strided = dataclasses.replace(
        given,
        x=x[:, :128],
        ids=given.ids.T.contiguous().T,
        weights=torch.stack((given.weights, given.weights), dim=2)[:, :, 0],
    )
    assert strided.ids.stride() != given.ids.stride()
    assert same_bits(strided.call(), want)


def test_the_weights_stay_in_place(generator):
    given = problem(4, SMALL, generator)
    e = given.experts
    tensors = (e.w13, e.s13, e.w2, e.s2)
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in tensors]
    given.call()
    for tensor, (pointer, bits) in zip(tensors, before, strict=True):
        assert tensor.data_ptr() == pointer
        assert torch.equal(tensor, bits)


def test_one_scratch_serves_calls_of_any_size(generator):
    scratch = make_scratch(9, SMALL, generator.device)
    for rows in (9, 2, 5):
        given = problem(rows, SMALL, generator)
        assert same_bits(given.call(scratch=scratch), given.call())


def test_a_shard_takes_the_tile_of_all_rows(generator):
    given = problem(3, Geometry(2, 2, 128, 32), generator)
    family = "spark" if given.x.device.type == "cpu" else "hopper"
    assert same_bits(given.call(rows_hint=4096), run(given, family, 4096))


def test_no_rows(generator):
    got = problem(0, SMALL, generator).call()
    assert got.shape == (0, 128)
    assert got.dtype == torch.bfloat16


def test_experts_past_two_to_the_31_bytes(device):
    """Zero bytes cost no memory until they are read: expert 600,000 of tiny ones lies at 2.4 GB."""
    experts, far = 600_001, 600_000

    def zeros(*shape):
        return torch.zeros((experts, *shape), dtype=torch.uint8, device=device)

    held = launch.Experts(zeros(64, 64), zeros(64, 4), zeros(128, 16), zeros(128, 1))
    near = problem(2, Geometry(1, 1, 128, 32), torch.Generator(device=device).manual_seed(2), 0)
    for have, want in zip(
        (held.w13, held.s13, held.w2, held.s2),
        (near.experts.w13, near.experts.s13, near.experts.w2, near.experts.s2),
        strict=True,
    ):
        have[far] = want[0]
    assert far * 64 * 64 > 2**31
    moved = dataclasses.replace(near, ids=near.ids + far, experts=held)
    for family in FAMILIES:
        assert same_bits(run(moved, family), run(near, family))


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


# --- arguments ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: dataclasses.replace(p, ids=p.ids.long()), "topk_ids: dtype int64"),
        (lambda p: dataclasses.replace(p, ids=p.ids[:1]), r"topk_ids: shape \[1, 2\]"),
        (lambda p: dataclasses.replace(p, weights=p.weights[:, :1]), r"topk_weights: shape"),
        (
            lambda p: dataclasses.replace(
                p, ids=p.ids[:, :1].expand(-1, 33), weights=p.weights[:, :1].expand(-1, 33)
            ),
            "33 slots a token, expected at most 32",
        ),
        (lambda p: dataclasses.replace(p, x=p.x.float()), "x: dtype float32, expected bfloat16"),
        (lambda p: dataclasses.replace(p, x=p.x[:, :96]), "hidden = 96, expected a multiple"),
        (
            lambda p: dataclasses.replace(
                p, experts=dataclasses.replace(p.experts, s13=p.experts.s13[:, :, :2])
            ),
            r"s13: shape \[4, 128, 2\], expected \[4, 128, 4\]",
        ),
        (
            lambda p: dataclasses.replace(
                p, experts=dataclasses.replace(p.experts, w2=p.experts.w2.transpose(1, 2))
            ),
            "w13: shape|inter|w2",
        ),
    ],
)
def test_arguments_that_do_not_fit(change, message, generator):
    given = change(problem(2, SMALL, generator))
    with pytest.raises(KernelArgumentError, match=message):
        given.call()


def test_a_scratch_that_is_too_small(generator):
    given = problem(9, SMALL, generator)
    with pytest.raises(KernelArgumentError, match="scratch"):
        given.call(scratch=make_scratch(5, SMALL, given.x.device))


def test_a_scratch_on_another_device(generator):
    given = problem(2, SMALL, generator)
    with pytest.raises(KernelArgumentError, match=r"scratch.order on meta, expected .* as x"):
        given.call(scratch=make_scratch(5, SMALL, torch.device("meta")))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none(limit, generator):
    given = problem(2, SMALL, generator)
    with pytest.raises(KernelArgumentError, match=f"limit = {limit}, expected above 0"):
        given.call(limit=limit)


def test_a_map_of_experts_on_another_device_or_of_none(device):
    ids = torch.zeros((1, 2), dtype=torch.int32, device=device)
    weights = torch.ones((1, 2), device=device)
    local_of = torch.zeros(3, dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="local_of on meta, expected"):
        remap_experts(ids, weights, local_of.to("meta"))
    with pytest.raises(KernelArgumentError, match=r"local_of: shape \[0\], expected at least 1"):
        remap_experts(ids, weights, local_of[:0])


def test_a_hint_below_the_rows(generator):
    given = problem(9, SMALL, generator)
    with pytest.raises(KernelArgumentError, match="rows_hint = 5, expected at least 9"):
        given.call(rows_hint=5)


def test_quantised_rows_need_scales(generator):
    given = problem(2, SMALL, generator)
    q, scales = mxfp8_quant(given.x)
    ready = dataclasses.replace(given, x=q)
    with pytest.raises(KernelArgumentError, match="expected bfloat16"):
        ready.call()
    with pytest.raises(KernelArgumentError, match="x_scales: shape"):
        ready.call(x_scales=scales[:, :3])


def test_it_says_where_it_runs(device):
    assert is_supported(torch.zeros(1, device=device))


# --- on a GPU ---


@triton.jit
def _decode_all(
    packed_ptr, scale_ptr, low_ptr, high_ptr, CODES: tl.constexpr, PORTABLE: tl.constexpr
):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    packed, scale = tl.load(packed_ptr + at), tl.load(scale_ptr + at)
    if CODES:
        low, high = decode_codes(packed, PORTABLE)
    else:
        low, high = decode(packed, scale, PORTABLE)
    tl.store(low_ptr + at, low)
    tl.store(high_ptr + at, high)


@GPU_ONLY
@pytest.mark.parametrize("codes", [True, False])
def test_decoding_in_assembly_equals_its_portable_twin(codes, device):
    scales = torch.arange(64, 191, device=device, dtype=torch.int32)
    packed = torch.arange(256, device=device, dtype=torch.int32).to(torch.uint8)
    packed = packed.repeat_interleave(4).repeat(len(scales)).contiguous()
    scales = scales.repeat_interleave(1024).contiguous()
    dtype = torch.float16 if codes else torch.bfloat16
    results = []
    for portable in (True, False):
        low, high = (torch.empty_like(packed, dtype=dtype) for _ in range(2))
        _decode_all[(len(packed) // 1024,)](
            packed, scales, low, high, CODES=codes, PORTABLE=portable
        )
        results.append((low, high))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])
    value = e2m1_decode(packed & 15).double() * (0.015625 if codes else 1.0)
    if not codes:
        value = torch.ldexp(value, scales - 189)
    assert torch.equal(results[1][0].double(), value)


REAL = Geometry(experts=24, slots=6, hidden=5120, inter=576)


@GPU_ONLY
@pytest.mark.parametrize("geometry", [REAL, Geometry(128, 3, 5120, 576)], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 6, 96, 513])
def test_real_shapes_equal_float64(geometry, rows, generator):
    given = problem(rows, geometry, generator)
    assert relative_l2(given.call(), given.exact()) < 4e-3


@GPU_ONLY
def test_every_capacity_gives_the_same_rows(generator):
    """Within a bucket bit for bit, across buckets to a rounding of the sums."""
    given = problem(5, REAL, generator)
    want = given.call()
    for capacity in plan.CAPACITIES:
        wide = problem(capacity, REAL, generator)
        mixed = Problem(
            torch.cat((given.x, wide.x[5:])),
            torch.cat((given.ids, wide.ids[5:])),
            torch.cat((given.weights, wide.weights[5:])),
            given.experts,
        )
        got = mixed.call()[:5]
        tiles = (tile_for(each, "hopper") for each in (capacity, 5))
        if len({dataclasses.replace(tile, split=False) for tile in tiles}) == 1:
            assert same_bits(got, want)
        else:
            assert relative_l2(got, want) < 1e-3


@GPU_ONLY
def test_more_rows_than_the_largest_capacity(generator):
    given = problem(4101, Geometry(8, 6, 512, 64), generator)
    got = given.call()
    assert relative_l2(got, given.exact()) < 4e-3
    assert same_bits(got[4096:], given.rows(slice(4096, None)).call(rows_hint=4101))


@GPU_ONLY
def test_a_graph_replays_on_new_inputs(generator):
    given, other = (problem(6, REAL, generator) for _ in range(2))
    other = dataclasses.replace(other, experts=given.experts)
    scratch = make_scratch(6, REAL, given.x.device)
    want = [each.call() for each in (given, other)]
    held = Problem(given.x.clone(), given.ids.clone(), given.weights.clone(), given.experts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = held.call(scratch=scratch)
    for each, expected in zip((given, other, given), (*want, want[0]), strict=True):
        held.x.copy_(each.x)
        held.ids.copy_(each.ids)
        held.weights.copy_(each.weights)
        graph.replay()
        assert same_bits(out, expected)
