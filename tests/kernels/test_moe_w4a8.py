"""Routed experts against float64 and hand-worked values, and what is claimed bit for bit."""

import dataclasses

import pytest
import torch
from sparkserve_kernels.moe_w4a8 import launch, plan, reference
from sparkserve_kernels.moe_w4a8.api import Geometry, make_scratch
from sparkserve_kernels.moe_w4a8.tiles import tile_for
from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant
from sparkserve_kernels.numerics.elements import e2m1_decode

from tests.kernels.experts import FAMILIES, SMALL, Problem, problem, run
from tests.kernels.numeric import relative_l2, same_bits

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


def test_a_scratch_that_a_dead_call_left_behind_serves_again_once_cleared(generator):
    given = problem(3, Geometry(2, 2, 256, 32), generator)
    want = run(given, "hopper")
    scratch = make_scratch(3, given.geometry, generator.device)
    scratch.arrivals.fill_(1)
    assert not same_bits(run(given, "hopper", scratch=scratch), want)
    scratch.clear()
    assert same_bits(run(given, "hopper", scratch=scratch), want)


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
