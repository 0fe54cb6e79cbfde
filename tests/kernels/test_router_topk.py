"""Routing: its formula and its routes, against float64, an order built in Python, worked cases."""

import math

import pytest
import torch
from sparkserve_kernels.numerics.elementary import exp_of_negative, sqrt_softplus
from sparkserve_kernels.router_topk import kernel, reference
from sparkserve_kernels.router_topk.api import Router, router_topk

from tests.kernels.numeric import same_bits
from tests.kernels.routing import DRAFT, TILES_OF_ALL, by_hand, draw, launched, same_routes

# numpy, on which the interpreter computes, warns of what is NaN or infinite by rule.
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


class TestFormula:
    def test_the_activation_is_that_of_float64(self, device):
        s = torch.cat([torch.linspace(-87, 60, 100_003), torch.linspace(-2, 2, 10_007)]).to(device)
        want = reference.activation(s.double())
        assert ((sqrt_softplus(s).double() - want).abs() / want).max() < 2.0**-22

    def test_its_exponential_is_that_of_float64(self, device):
        x = torch.linspace(0, 87, 100_003, device=device)
        want = torch.exp(-x.double())
        assert ((exp_of_negative(x).double() - want).abs() / want).max() < 2.0**-22

    def test_its_edges(self):
        s = torch.tensor([-torch.inf, -88.0, 0.0, 20.0, 20.5, 1e30, torch.inf, torch.nan])
        a = sqrt_softplus(s).double()
        assert a[:2].tolist() == [0.0, 0.0]
        assert a[2].item() == pytest.approx(math.sqrt(math.log(2)), rel=2e-7)
        assert torch.equal(a[3:7].float(), s[3:7].sqrt())
        assert a[7].isnan()

    def test_it_never_falls_where_the_score_rises(self):
        """Else an order by scores alone, as without a bias, would not be that of the router."""
        s = torch.linspace(-30, 30, 100_001)
        steps = sqrt_softplus(s).diff()
        assert steps.min() >= -(2.0**-22) * sqrt_softplus(s).max()

    def test_the_rough_search_errs_by_less_than_its_margin(self):
        """Its formula in float64, by the kernel's constants; the GPU's own steps add some 2^-21."""
        s = torch.linspace(-87, 87, 400_001, dtype=torch.float64)
        powers = (kernel.ROUGH_0, kernel.ROUGH_1, kernel.ROUGH_2, kernel.ROUGH_3, kernel.ROUGH_4)
        z = torch.exp(-s.abs())
        log1p = sum(power.value * z ** (i + 1) for i, power in enumerate(powers))
        error = torch.sqrt(log1p + s.clamp(min=0)) / reference.activation(s) - 1
        assert error.abs().max() < 3e-5 < kernel.MARGIN.value / 2

    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_the_kernel_computes_it_bit_for_bit(self, tile, generator, device):
        scores, bias = draw(5, 384, generator, spread=8.0)
        assert same_routes(launched(scores, bias, tile), reference.router_topk(scores, bias))


class TestRoutes:
    @pytest.mark.parametrize(
        ("rows", "experts", "router"),
        [
            (1, 384, Router()),
            (6, 384, Router()),
            (7, 384, Router()),
            (5, 128, DRAFT),
            (3, 6, Router()),
            (2, 131, Router(chosen=8)),
            (2, 512, Router(chosen=1, scale=1.0)),
            (0, 384, Router()),
        ],
    )
    def test_they_are_those_of_float64(self, rows, experts, router, generator):
        scores, bias = draw(rows, experts, generator)
        got = router_topk(scores, bias, router=router)
        assert got.ids.shape == got.weights.shape == (rows, router.chosen)
        assert (got.ids.dtype, got.weights.dtype) == (torch.int32, torch.float32)
        assert same_routes(got, reference.router_topk(scores, bias, router=router))
        if rows:
            ids, weights = by_hand(scores.cpu(), bias.cpu(), router)
            assert torch.equal(got.ids.cpu().long(), ids)
            assert torch.allclose(got.weights.cpu().double(), weights, rtol=1e-6)

    def test_the_reference_routes_float64_too(self, generator):
        scores, bias = draw(4, 128, generator)
        got = reference.router_topk(scores.double(), bias.double(), router=DRAFT)
        ids, weights = by_hand(scores.cpu(), bias.cpu(), DRAFT)
        assert torch.equal(got.ids.cpu().long(), ids)
        assert torch.allclose(got.weights.cpu(), weights, rtol=1e-13)

    def test_golden_values(self, device):
        """Scores ln(e^n - 1) give a = sqrt(n): 3, 2 and 1 of a sum of 6, times 1.5."""
        scores = torch.full((1, 128), -60.0, device=device)
        for expert, n in ((5, 4.0), (77, 9.0), (127, 1.0)):
            scores[0, expert] = math.log(math.expm1(n))
        got = router_topk(scores, torch.zeros(128, device=device), router=DRAFT)
        assert got.ids.tolist() == [[77, 5, 127]]
        assert got.weights[0].tolist() == pytest.approx([0.75, 0.5, 0.25], rel=1e-6)

    def test_the_bias_chooses_and_does_not_weigh(self, device):
        scores = torch.zeros(1, 384, device=device)
        bias = torch.zeros(384, device=device)
        bias[[9, 300, 2, 383, 17, 100]] = torch.tensor([6.0, 5, 4, 3, 2, 1], device=device)
        got = router_topk(scores, bias)
        assert got.ids.tolist() == [[9, 300, 2, 383, 17, 100]]
        assert got.weights[0].tolist() == pytest.approx([0.25] * 6, rel=1e-6)

    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_equal_ranks_go_to_the_lowest_ids(self, tile, generator, device):
        """Scores of few values, so that every row has ties within and at the edge of its best."""
        values = torch.tensor([-1.0, 0.5, 0.5000001, 2.0], device=device)
        pick = torch.randint(0, 4, (8, 384), generator=generator, device=device)
        pick[0], pick[1, 1:] = 2, 0
        pick[2] = torch.where(pick[2] == 3, 1, pick[2])
        pick[2, [380, 7, 200]] = 3
        scores, bias = values[pick], torch.zeros(384, device=device)
        got = launched(scores, bias, tile)
        for row, ids in enumerate(got.ids.tolist()):
            wanted = sorted(range(384), key=lambda i, r=row: (-scores[r, i].item(), i))
            assert ids == wanted[:6]
        assert same_routes(got, reference.router_topk(scores, bias))

    def test_equal_sums_of_unequal_parts_tie_as_computed(self, device):
        """The rank is the fp32 sum: a difference of a below its last place decides nothing."""
        scores = torch.full((1, 128), -50.0, device=device)
        scores[0, [90, 40]] = torch.tensor([0.0, 1e-7], device=device)
        bias = torch.zeros(128, device=device)
        bias[[90, 40]] = 1024.0
        got = router_topk(scores, bias, router=DRAFT)
        assert got.ids[0, :2].tolist() == [40, 90]

    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_nan_ranks_first(self, tile, generator, device):
        scores, bias = draw(4, 384, generator)
        scores[0, [300, 12]] = torch.nan
        scores[1] = torch.nan
        scores[2, 5] = torch.inf
        scores[3, 8] = -torch.nan
        got = launched(scores, bias, tile)
        assert got.ids[0, :2].tolist() == [12, 300]
        assert got.ids[1].tolist() == [0, 1, 2, 3, 4, 5]
        assert got.ids[2, 0] == 5
        assert got.ids[3, 0] == 8
        assert got.weights[[0, 1, 3]].isnan().all()
        want = reference.router_topk(scores, bias)
        assert same_bits(got.ids, want.ids)
        assert torch.equal(got.weights.isnan(), want.weights.isnan())

    @pytest.mark.parametrize(
        "pair",
        [
            (-0.11229181289672852, -1.859609842300415),
            (-0.08096551895141602, -1.9890787601470947),
            (-0.12446784973144531, -1.9316480159759521),
        ],
    )
    def test_exact_ties_hold_where_the_rough_search_sees_none(self, pair, device):
        """Equal sums of which the short formula puts expert 90 first, a whole key above."""
        scores = torch.full((1, 128), -30.0, device=device)
        scores[0, [9, 90]] = torch.tensor(pair, device=device)
        bias = torch.full((128,), -2.0, device=device)
        a = reference.activation(scores[0])
        bias[90], bias[9], bias[50] = 0.0, a[90] - a[9], -1.0
        assert a[9] + bias[9] == a[90]
        assert router_topk(scores, bias, router=DRAFT).ids.tolist() == [[9, 90, 50]]

    @pytest.mark.parametrize("level", [-200.0, -86.0, 0.5, 30.0, 1e38])
    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_gaps_that_the_rough_search_cannot_see_are_decided_exactly(
        self, tile, level, generator, device
    ):
        """Twelve near the top, from one last place apart to the margin, at every size of a."""
        scores = torch.full((3, 384), level - abs(level) - 1.0, device=device)
        near = torch.rand(3, 12, generator=generator, device=device)
        steps = torch.tensor([[1e-7], [3e-6], [1e-4]], device=device)
        places = torch.randperm(384, generator=generator, device=device)[:12]
        scores[:, places] = level * (1 + near * steps)
        bias = torch.zeros(384, device=device)
        assert same_routes(launched(scores, bias, tile), reference.router_topk(scores, bias))
        bias[places] = 100.0 + near[0] * 1e-4
        assert same_routes(launched(scores, bias, tile), reference.router_topk(scores, bias))

    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_the_last_place_is_not_lost_to_a_lower_id(self, tile, device):
        """The rough search takes expert 10; expert 300 is better by less than it can see."""
        scores = torch.full((4, 384), -4.0, device=device)
        scores[:, :5] = torch.arange(8.0, 3.0, -1.0, device=device)
        gaps = torch.tensor([2e-7, 1e-6, 1e-5, 5e-5], device=device)
        scores[:, 10], scores[:, 300] = 1.0, 1.0 + gaps
        got = launched(scores, torch.zeros(384, device=device), tile)
        assert got.ids.tolist() == [[0, 1, 2, 3, 4, 300]] * 4

    def test_large_biases_decide_as_computed(self, generator, device):
        scores, bias = draw(4, 384, generator)
        for factor in (1e3, 1e6, 1e30, 1e38):
            got = router_topk(scores, bias * factor)
            assert same_routes(got, reference.router_topk(scores, bias * factor))

    def test_a_bias_of_nan_ranks_first_and_weighs_by_its_score(self, generator, device):
        scores, bias = draw(2, 384, generator)
        bias[200] = torch.nan
        got = router_topk(scores, bias)
        assert got.ids[:, 0].tolist() == [200, 200]
        assert same_routes(got, reference.router_topk(scores, bias))
        assert not got.weights.isnan().any()

    def test_infinities_of_both_signs_are_ordered(self, device):
        scores = torch.zeros(1, 128, device=device)
        bias = torch.full((128,), -torch.inf, device=device)
        bias[[3, 60]] = torch.tensor([torch.inf, -1e38], device=device)
        assert router_topk(scores, bias, router=DRAFT).ids.tolist() == [[3, 60, 0]]
