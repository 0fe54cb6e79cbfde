"""Routing: against float64, an order built in Python, worked cases, remapping afterwards."""

import itertools
import math

import numpy as np
import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.numerics.elementary import exp_of_negative, sqrt_softplus
from sparkserve_kernels.router_topk import api, kernel, reference
from sparkserve_kernels.router_topk.api import Router, Routes, RowFacts, router_topk
from sparkserve_kernels.router_topk.tiles import TILES

from tests.kernels.numeric import same_bits

# numpy, on which the interpreter computes, warns of what is NaN or infinite by rule.
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs or real sizes"
)
DRAFT = Router(chosen=3)
TILES_OF_ALL = sorted({tile for pair in TILES.values() for tile in pair}, key=str)


def draw(rows, experts, generator, *, spread=2.0):
    device = generator.device
    scores = torch.randn(rows, experts, generator=generator, device=device) * spread
    bias = torch.randn(experts, generator=generator, device=device) * 0.1
    return scores, bias


def same_routes(one, other):
    return same_bits(one.ids, other.ids) and same_bits(one.weights, other.weights)


def by_hand(scores, bias, router):
    """Ids and weights in Python's own floats; only for rows whose ranks lie clearly apart."""
    ids, weights = [], []
    for row in scores.double().tolist():
        a = [math.sqrt(s) if s > 20 else math.sqrt(math.log1p(math.exp(s))) for s in row]
        b = [x + y for x, y in zip(a, bias.double().tolist(), strict=True)]
        order = sorted(range(len(b)), key=lambda i: (-b[i], i))
        gaps = [b[x] - b[y] for x, y in itertools.pairwise(order)][: router.chosen]
        assert min(gaps) > 1e-6, "draw other scores: these decide nothing"
        best = order[: router.chosen]
        ids.append(best)
        total = sum(a[i] for i in best)
        weights.append([a[i] / total * router.scale for i in best])
    return torch.tensor(ids), torch.tensor(weights, dtype=torch.float64)


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


class TestRows:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_padding_rows_have_no_experts(self, tile, dtype, generator, device):
        scores, bias = draw(7, 384, generator)
        scores[5:] = torch.nan
        facts = RowFacts(rows_not_padding=torch.tensor([5], dtype=dtype, device=device))
        got = launched(scores, bias, tile, rows=facts)
        assert (got.ids[5:] == -1).all()
        assert (got.weights[5:] == 0).all()
        whole = router_topk(scores[:5], bias)
        assert same_routes(Routes(got.ids[:5], got.weights[:5]), whole)
        assert same_routes(got, reference.router_topk(scores, bias, rows=facts))

    @pytest.mark.parametrize("count", [0, 7, 100])
    def test_all_or_no_rows_may_be_padding(self, count, generator, device):
        scores, bias = draw(7, 128, generator)
        facts = RowFacts(rows_not_padding=torch.tensor(count, device=device))
        got = router_topk(scores, bias, rows=facts, router=DRAFT)
        assert int((got.ids == -1).all(dim=1).sum()) == max(7 - count, 0)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_image_tokens_are_ranked_by_their_own_bias(self, dtype, generator, device):
        scores, bias = draw(5, 384, generator)
        bias_vl = torch.randn(384, generator=generator, device=device)
        tokens = torch.tensor([1, 129264, 129263, 129264, 0], dtype=dtype, device=device)
        got = router_topk(scores, bias, bias_vl, rows=RowFacts(tokens=tokens))
        text, image = router_topk(scores, bias), router_topk(scores, bias_vl)
        picked = (tokens == 129264)[:, None]
        assert same_bits(got.ids, torch.where(picked, image.ids, text.ids))
        assert same_bits(got.weights, torch.where(picked, image.weights, text.weights))

    @pytest.mark.parametrize("tile", TILES_OF_ALL, ids=str)
    def test_dead_rows_take_their_anchors_routes(self, tile, generator, device):
        """Bit-equal to routing all rows and replacing those of dead rows afterwards."""
        scores, bias = draw(12, 384, generator)
        bias_vl = torch.randn(384, generator=generator, device=device)
        tokens = torch.where(
            torch.rand(12, generator=generator, device=device) < 0.5, 129264, 7
        ).long()
        live = torch.full((64,), 6, dtype=torch.int64, device=device)
        live[:2] = torch.tensor([2, 4], device=device)
        plain = router_topk(scores, bias, bias_vl, rows=RowFacts(tokens=tokens))
        facts = RowFacts(tokens=tokens, live_lengths=live)
        got = launched(scores, bias, tile, bias_vl=bias_vl, rows=facts)
        assert same_routes(got, reference.remap_dead_rows(plain, live))
        assert same_routes(got, reference.router_topk(scores, bias, bias_vl, rows=facts))
        assert not same_routes(got, plain)
        for row, (request, position) in enumerate((r, p) for r in range(2) for p in range(6)):
            source = request * 6 if position >= live[request] else row
            assert torch.equal(got.ids[row], plain.ids[source])

    def test_dead_rows_add_no_expert(self, generator, device):
        scores, bias = draw(6, 384, generator)
        live = torch.tensor([1], device=device)
        got = router_topk(scores, bias, rows=RowFacts(live_lengths=live))
        assert len(set(got.ids.flatten().tolist())) == 6

    def test_a_nan_of_a_dead_row_is_never_read(self, generator, device):
        scores, bias = draw(6, 384, generator)
        scores[3:] = torch.nan
        facts = RowFacts(live_lengths=torch.tensor([3], device=device))
        assert not router_topk(scores, bias, rows=facts).weights.isnan().any()

    def test_a_padding_request_stays_padding_when_dead(self, generator, device):
        scores, bias = draw(12, 384, generator)
        live = torch.tensor([2, 2], device=device)
        facts = RowFacts(
            rows_not_padding=torch.tensor([6], dtype=torch.int32, device=device), live_lengths=live
        )
        got = router_topk(scores, bias, rows=facts)
        assert (got.ids[6:] == -1).all()
        padded = router_topk(scores, bias, rows=RowFacts(rows_not_padding=facts.rows_not_padding))
        assert same_routes(got, reference.remap_dead_rows(padded, live))

    def test_rows_may_lie_apart(self, generator):
        wide, bias = draw(5, 400, generator)
        apart, packed = wide[:, 7:391], wide[:, 7:391].contiguous()
        assert same_routes(router_topk(apart, bias[:384]), router_topk(packed, bias[:384]))

    def test_rows_stand_alone(self, generator, device):
        """Permuted rows permute routes; a row alone, in any tile and run again, keeps its bits."""
        scores, bias = draw(7, 384, generator)
        got = router_topk(scores, bias)
        order = torch.randperm(7, generator=generator, device=device)
        moved = router_topk(scores[order], bias)
        assert same_routes(moved, Routes(got.ids[order], got.weights[order]))
        for tile in TILES_OF_ALL:
            assert same_routes(launched(scores, bias, tile), got)
        alone = router_topk(scores[4:5], bias)
        assert same_routes(alone, Routes(got.ids[4:5], got.weights[4:5]))

    def test_rows_past_two_to_the_31_elements_are_found(self, device):
        """The last row lies 2^31 elements behind the first; only pages of rows are touched."""
        stride = 2**28 + 16
        if device.type == "cuda":
            store = torch.zeros(8 * stride + 128, device=device)
        else:
            store = torch.from_numpy(np.zeros(8 * stride + 128, dtype=np.float32))
        scores = store.as_strided((9, 128), (stride, 1))
        scores[8, [70, 5, 9]] = torch.tensor([3.0, 2.0, 1.0], device=device)
        got = router_topk(scores, torch.zeros(128, device=device), router=DRAFT)
        assert got.ids[[0, 8]].tolist() == [[0, 1, 2], [70, 5, 9]]


class TestGpu:
    @GPU_ONLY
    @pytest.mark.parametrize("rows", [6, 96, 4096, 32771])
    def test_real_sizes_equal_the_reference(self, rows, generator):
        scores, bias = draw(rows, 384, generator)
        assert same_routes(router_topk(scores, bias), reference.router_topk(scores, bias))

    @GPU_ONLY
    def test_the_gpu_computes_what_the_cpu_does(self, generator):
        scores, bias = draw(4096, 384, generator)
        got = router_topk(scores, bias)
        want = reference.router_topk(scores.cpu(), bias.cpu())
        assert same_routes(Routes(got.ids.cpu(), got.weights.cpu()), want)

    @GPU_ONLY
    def test_a_captured_router_follows_scores_padding_and_live_lengths(self, generator, device):
        scores, bias = draw(24, 384, generator)
        live = torch.full((64,), 6, dtype=torch.int64, device=device)
        count = torch.tensor([24], dtype=torch.int32, device=device)
        facts = RowFacts(rows_not_padding=count, live_lengths=live)
        router_topk(scores, bias, rows=facts)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = router_topk(scores, bias, rows=facts)
        for padding in (0, 6, 12):
            scores.copy_(draw(24, 384, generator)[0])
            live.random_(1, 7, generator=generator)
            count.fill_(24 - padding)
            graph.replay()
            assert same_routes(got, reference.router_topk(scores, bias, rows=facts))


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"scores": torch.zeros(6, 384, dtype=torch.bfloat16)}, "scores: dtype bfloat16"),
            ({"scores": torch.zeros(384, 6).t()}, r"scores: strides \[1, 6\], expected 1"),
            ({"scores": torch.zeros(6, 4), "bias": torch.zeros(4)}, "4 experts, expected 6 to 512"),
            ({"scores": torch.zeros(1, 520), "bias": torch.zeros(520)}, "520 experts, expected"),
            ({"bias": torch.zeros(383)}, r"bias: shape \[383\], expected \[384\]"),
            ({"bias_vl": torch.zeros(384)}, "bias_vl without rows.tokens"),
            (
                {"bias_vl": torch.zeros(384), "rows": RowFacts(tokens=torch.zeros(6))},
                "tokens: dtype float32, expected int32 or int64",
            ),
            ({"router": Router(chosen=9)}, "chosen = 9, expected 1 to 8"),
            ({"router": Router(rows_per_request=0)}, "rows_per_request = 0, expected at least 1"),
            ({"router": Router(rows_per_request=-6)}, "rows_per_request = -6, expected"),
            (
                {"rows": RowFacts(rows_not_padding=torch.zeros(2, dtype=torch.int32))},
                r"rows_not_padding: shape \[2\], expected \[1\]",
            ),
            (
                {"rows": RowFacts(live_lengths=torch.zeros(64, dtype=torch.int32))},
                "live_lengths: dtype int32, expected int64",
            ),
            (
                {"rows": RowFacts(live_lengths=torch.zeros(0, dtype=torch.int64))},
                "6 rows, expected a multiple of 6 for at most 0 live lengths",
            ),
            (
                {
                    "scores": torch.zeros(7, 384),
                    "rows": RowFacts(live_lengths=torch.zeros(64, dtype=torch.int64)),
                },
                "7 rows, expected a multiple of 6 for at most 64 live lengths",
            ),
        ],
    )
    def test_calls(self, change, message):
        arguments = {"scores": torch.zeros(6, 384), "bias": torch.zeros(384), **change}
        with pytest.raises(KernelArgumentError, match=message):
            router_topk(**arguments)

    def test_support_is_a_question_of_the_device(self, device):
        assert api.is_supported(torch.zeros(1, device=device))
        assert not api.is_supported(torch.zeros(1, device="meta"))


def launched(scores, bias, tile, *, bias_vl=None, rows=api.NO_FACTS, router=api.DEFAULT):
    """The routes by one tile."""
    routes = Routes(
        torch.empty(len(scores), router.chosen, dtype=torch.int32, device=scores.device),
        torch.empty(len(scores), router.chosen, device=scores.device),
    )
    api.launch(scores, (bias, bias_vl), routes, tile=tile, rows=rows, router=router)
    return routes
