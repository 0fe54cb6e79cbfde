"""Routing of padding, images and dead rows; rows one by one; real sizes; what is refused."""

import numpy as np
import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.router_topk import api, reference
from sparkserve_kernels.router_topk.api import Router, Routes, RowFacts, router_topk

from tests.kernels.numeric import same_bits
from tests.kernels.routing import DRAFT, TILES_OF_ALL, draw, launched, same_routes

# numpy, on which the interpreter computes, warns of what is NaN or infinite by rule.
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs or real sizes"
)


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
