"""Block verification: verdicts of the kernels against the reference, whose law is proven apart."""

import pytest
import torch
from sparkserve_kernels.block_verify import api, reference
from sparkserve_kernels.block_verify import noise as random
from sparkserve_kernels.block_verify.api import Block, Verdict, block_verify
from sparkserve_kernels.block_verify.tiles import TILES, Tile
from sparkserve_kernels.checks import KernelArgumentError

from tests.kernels.numeric import same_bits

# numpy, on which the interpreter computes, warns where integers wrap and where 0 meets 0.
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered:RuntimeWarning"),
]
GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs or real sizes"
)


def draw(requests, drafts, vocabulary, generator, *, likeness=1.0):
    """A target, a draft near it, and tokens drawn from the draft."""
    device = generator.device
    size = (requests, drafts + 1, vocabulary)
    logits = torch.randn(size, generator=generator, device=device) * 2
    other = torch.randn(size, generator=generator, device=device)[:, :-1] * likeness
    target = torch.softmax(logits, dim=-1)
    draft = torch.softmax(logits[:, :-1] + other, dim=-1)
    tokens = torch.multinomial(draft.flatten(0, 1), 1, generator=generator)
    return Block(target, draft, tokens.view(requests, drafts))


def seeds(call, device, seed=0x0123456789ABCDEF):
    return torch.tensor([seed, call], device=device)


def launched(block, noise, tile):
    """The verdict by one tile."""
    verdict = Verdict(
        torch.empty(block.requests, dtype=torch.int32, device=noise.device),
        torch.empty(block.requests, dtype=torch.int64, device=noise.device),
    )
    api.launch(block, noise, verdict, tile)
    return verdict


def same(one, other):
    return same_bits(one.accepted, other.accepted) and same_bits(one.token, other.token)


class TestKernel:
    @pytest.mark.parametrize(
        ("requests", "drafts", "vocabulary"),
        [(2, 5, 37), (16, 3, 7), (1, 8, 1), (1, 2, 4101), (0, 5, 37)],
    )
    def test_verdicts_are_the_references(self, requests, drafts, vocabulary, generator, device):
        for call in range(2):
            block = draw(requests, drafts, vocabulary, generator, likeness=0.5)
            noise = seeds(call, device)
            if requests and reference.margins(block, noise).min() < 1e-6:
                continue
            got = block_verify(block, noise)
            assert (got.accepted.dtype, got.token.dtype) == (torch.int32, torch.int64)
            assert same(got, reference.block_verify(block, noise))

    def test_live_and_greedy_rows_are_the_references(self, generator, device):
        block = draw(6, 3, 19, generator, likeness=0.5)
        tokens = block.tokens.clone()
        tokens[2:] = block.target[2:, :-1].argmax(dim=2)
        tokens[4, 2] = (tokens[4, 2] + 1) % 19
        live = torch.tensor([2, 1, 4, 3, 4, 1], device=device)
        greedy = torch.tensor([False, False, True, True, True, True], device=device)
        block = Block(block.target, block.draft, tokens.int(), live, greedy)
        got = block_verify(block, seeds(1, device))
        assert same(got, reference.block_verify(block, seeds(1, device)))
        assert got.accepted[2:].tolist() == [3, 2, 2, 0]
        best = block.target.argmax(dim=2)
        want = [int(best[r, a]) for r, a in ((2, 3), (3, 2), (4, 2), (5, 0))]
        assert got.token[2:].tolist() == want

    def test_greedy_takes_the_lowest_of_equal_tokens(self, device):
        target = torch.full((1, 2, 4102), 0.0, device=device)
        target[0, 0, [3, 4100]] = 0.5
        target[0, 1, [4096, 4097]] = 0.5
        draft = torch.full((1, 1, 4102), 1 / 4102, device=device)
        block = Block(
            target,
            draft,
            torch.tensor([[3]], device=device),
            greedy=torch.ones(1, dtype=torch.bool, device=device),
        )
        got = block_verify(block, seeds(0, device))
        assert (int(got.accepted), int(got.token)) == (1, 4096)

    def test_sharp_targets_decide_like_greedy_ones(self, generator, device):
        """One-hot targets leave no choice: the law's own answer is the greedy one."""
        block = draw(3, 2, 11, generator, likeness=0.3)
        target = torch.nn.functional.one_hot(block.target.argmax(dim=2), 11).float()
        tokens = block.target[:, :-1].argmax(dim=2)
        tokens[1, 1] = (tokens[1, 1] + 1) % 11
        got = block_verify(Block(target, block.draft, tokens), seeds(2, device))
        assert got.accepted.tolist() == [2, 1, 2]
        assert torch.equal(got.token, target.argmax(dim=2)[[0, 1, 2], [2, 1, 2]])

    def test_equal_distributions_accept_everything(self, generator, device):
        """S = 0 and w = 1 up to rounding; the last draft's chance is w itself."""
        block = draw(3, 5, 13, generator, likeness=0.0)
        got = block_verify(block, seeds(4, device))
        assert got.accepted.tolist() == [5, 5, 5]

    def test_impossible_drafts_are_never_accepted(self, generator, device):
        """p(X) = 0 gives w = 0 and h = 0, which no draw of 0 passes: the comparison is strict."""
        block = draw(4, 2, 7, generator)
        target = block.target.clone()
        target.scatter_(2, block.tokens[:, :1, None].expand(-1, 3, -1), 0.0)
        target /= target.sum(dim=2, keepdim=True)
        got = block_verify(Block(target, block.draft, block.tokens), seeds(5, device))
        assert got.accepted.tolist() == [0, 0, 0, 0]
        assert (got.token != block.tokens[:, 0]).all()

    def test_a_draw_of_zero_accepts_nothing_at_chance_zero(self, device):
        """Once in 2^24 draws eta is 0, as the first of this call: the comparison is strict."""
        noise = seeds(2300047, device)
        assert int(random.words_of(noise, 1, 1, random.ACCEPT)[0]) >> 8 == 0
        target = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], device=device)
        draft = torch.tensor([[[0.5, 0.5]]], device=device)
        got = block_verify(Block(target, draft, torch.tensor([[0]], device=device)), noise)
        assert (int(got.accepted), int(got.token)) == (0, 1)

    def test_tiny_draft_probabilities_divide_nothing_by_zero(self, generator, device):
        block = draw(2, 2, 7, generator)
        draft = block.draft.clone()
        draft.scatter_(2, block.tokens[:, :, None], 0.0)
        got = block_verify(Block(block.target, draft, block.tokens), seeds(6, device))
        want = reference.block_verify(Block(block.target, draft, block.tokens), seeds(6, device))
        assert same(got, want)
        assert got.accepted.tolist() == [2, 2]

    def test_no_mass_left_draws_from_the_target(self, device):
        """By rounding alone: here the draft claims more than the target everywhere."""
        target = torch.tensor([[[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]]], device=device)
        draft = torch.tensor([[[0.5, 0.5, 0.75]]], device=device)
        block = Block(target, draft, torch.tensor([[0]], device=device))
        seen = {int(block_verify(block, seeds(call, device)).token) for call in range(12)}
        assert seen == {1, 2}

    def test_no_mass_left_draws_from_the_target_in_many_pieces(self, generator, device):
        target = torch.rand(2, 2, 100, generator=generator, device=device)
        target[:, :, 0] = 0.0
        block = Block(
            target, target[:, :1] + 0.5, torch.zeros(2, 1, dtype=torch.int64, device=device)
        )
        for call in range(3):
            got = launched(block, seeds(call, device), Tile(16, 1, 8, 1))
            assert got.accepted.tolist() == [0, 0]
            assert same(got, reference.block_verify(block, seeds(call, device)))

    def test_zeros_of_top_k_are_never_drawn(self, generator, device):
        block = draw(3, 2, 64, generator)
        target = block.target.clone()
        target[target < target.topk(4, dim=2).values[:, :, -1:]] = 0.0
        target /= target.sum(dim=2, keepdim=True)
        for call in range(3):
            got = block_verify(Block(target, block.draft, block.tokens), seeds(call, device))
            row = target[torch.arange(3, device=device), got.accepted.long()]
            assert (row.gather(1, got.token[:, None]) > 0).all()

    def test_nan_never_leaves_the_vocabulary(self, device):
        target = torch.full((1, 2, 9), torch.nan, device=device)
        block = Block(
            target, target[:, :1].clone(), torch.zeros(1, 1, dtype=torch.int64, device=device)
        )
        got = block_verify(block, seeds(0, device))
        assert 0 <= int(got.token) < 9
        assert 0 <= int(got.accepted) <= 1

    @pytest.mark.parametrize("outside", [-1, 5, 2**31 - 1])
    def test_a_draft_outside_the_vocabulary_is_neither_read_nor_accepted(self, outside, device):
        # What lies around the rows would make the ratio of such a draft infinite.
        target = torch.full((1, 3, 7), 1e30, device=device)
        draft = torch.zeros((1, 2, 7), device=device)
        target[..., 1:6], draft[..., 1:6] = 0.2, 0.2
        tokens = torch.tensor([[outside, 1]], device=device)
        block = Block(target[..., 1:6], draft[..., 1:6], tokens)
        got = block_verify(block, seeds(0, device))
        assert same(got, reference.block_verify(block, seeds(0, device)))
        assert got.accepted.tolist() == [0]
        dead = Block(*(block.target, block.draft, tokens), torch.tensor([1], device=device))
        assert reference.block_verify(dead, seeds(0, device)).accepted.tolist() == [0]

    @pytest.mark.parametrize("drafts", [1, 2, 5])
    def test_a_draft_whose_target_is_nan_is_not_accepted(self, drafts, device):
        target = torch.full((1, drafts + 1, 5), float("nan"), device=device)
        draft = torch.full((1, drafts, 5), 0.2, device=device)
        tokens = torch.zeros((1, drafts), dtype=torch.int64, device=device)
        got = block_verify(Block(target, draft, tokens), seeds(0, device))
        assert got.accepted.tolist() == [0]

    def test_ranks_agree_and_calls_differ(self, generator, device):
        """Equal seed and call give equal bits; of many calls, not all give the same token."""
        block = draw(1, 1, 50, generator)
        once = [block_verify(block, seeds(call, device)) for call in range(4)]
        again = [block_verify(block, seeds(call, device)) for call in range(4)]
        assert all(same(x, y) for x, y in zip(once, again, strict=True))
        assert len({int(verdict.token) for verdict in once}) > 1
        other = [block_verify(block, seeds(call, device, seed=1)) for call in range(4)]
        assert [int(v.token) for v in once] != [int(v.token) for v in other]

    @pytest.mark.parametrize("tile", sorted({*TILES.values(), Tile(16, 1, 8, 1)}, key=str), ids=str)
    def test_every_tile_gives_the_same_verdict(self, tile, generator, device):
        block = draw(2, 2, 67, generator)
        noise = seeds(8, device)
        assert same(launched(block, noise, tile), reference.block_verify(block, noise))

    def test_rows_may_lie_apart(self, generator, device):
        block = draw(2, 2, 20, generator)
        wide = torch.rand(2, 3, 33, generator=generator, device=device)
        wide[:, :, 5:25] = block.target
        apart = Block(wide[:, :, 5:25], block.draft, block.tokens)
        assert same(block_verify(apart, seeds(3, device)), block_verify(block, seeds(3, device)))


class TestCap:
    def test_a_cap_commits_what_fewer_drafts_do(self, generator, device):
        """Five drafts of which k live, and k drafts: one verdict on the same noise."""
        block = draw(2, 3, 23, generator, likeness=0.4)
        for k in (1, 2):
            live = torch.full((64,), 1 + k, device=device)
            capped = Block(block.target, block.draft, block.tokens, live)
            fewer = Block(
                block.target[:, : k + 1], block.draft[:, :k], block.tokens[:, :k].contiguous()
            )
            noise = seeds(k, device)
            got = block_verify(capped, noise)
            assert same(got, block_verify(fewer, noise))
            assert (got.accepted <= k).all()


class TestGpu:
    @GPU_ONLY
    @pytest.mark.parametrize("requests", [1, 16])
    def test_a_real_vocabulary_decides_as_float64(self, requests, generator, device):
        for call in range(4):
            block = draw(requests, 5, 129280, generator, likeness=0.5)
            exact = Block(block.target.double(), block.draft.double(), block.tokens)
            noise = seeds(call, device)
            clear = reference.margins(exact, noise) > 1e-6
            got, want = block_verify(block, noise), reference.block_verify(exact, noise)
            assert clear.sum() >= requests - 1
            assert torch.equal(got.accepted[clear], want.accepted[clear])
            assert torch.equal(got.token[clear], want.token[clear])

    @GPU_ONLY
    def test_a_captured_verify_follows_its_inputs_and_its_call(self, generator, device):
        block = draw(4, 5, 1000, generator, likeness=0.5)
        noise = seeds(0, device)
        live = torch.full((64,), 6, dtype=torch.int64, device=device)
        block = Block(block.target, block.draft, block.tokens, live)
        block_verify(block, noise)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = block_verify(block, noise)
        for call in range(1, 4):
            other = draw(4, 5, 1000, generator, likeness=0.5)
            for mine, new in ((block.target, other.target), (block.draft, other.draft)):
                mine.copy_(new)
            block.tokens.copy_(other.tokens)
            live.random_(1, 7, generator=generator)
            noise[1] = call
            graph.replay()
            assert same(got, reference.block_verify(block, noise))


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"target": torch.zeros(2, 5, 7)},
                r"target: shape \[2, 5, 7\], expected \[2, 6, any\]",
            ),
            ({"draft": torch.zeros(2, 5, 8)}, r"draft: shape \[2, 5, 8\], expected \[2, 5, 7\]"),
            ({"draft": torch.zeros(2, 5, 7).half()}, "draft: dtype float16, expected float32"),
            ({"tokens": torch.zeros(2, 5)}, "tokens: dtype float32, expected int32 or int64"),
            ({"tokens": torch.zeros(2, 9, dtype=torch.int64)}, "tokens: 9 drafts, expected 1 to 8"),
            ({"target": torch.zeros(2, 6, 0)}, "target: 0 tokens, expected 1 to"),
            (
                {"live_lengths": torch.zeros(1, dtype=torch.int64)},
                r"live_lengths: shape \[1\], expected \[2\]",
            ),
            ({"greedy": torch.zeros(2)}, "greedy: dtype float32, expected bool"),
            ({"greedy": torch.zeros(3, dtype=torch.bool)}, r"greedy: shape \[3\], expected \[2\]"),
        ],
    )
    def test_blocks(self, change, message):
        block = {
            "target": torch.zeros(2, 6, 7),
            "draft": torch.zeros(2, 5, 7),
            "tokens": torch.zeros(2, 5, dtype=torch.int64),
            **change,
        }
        with pytest.raises(KernelArgumentError, match=message):
            block_verify(Block(**block), torch.tensor([0, 0]))

    def test_noise(self):
        block = Block(
            torch.zeros(1, 2, 3), torch.zeros(1, 1, 3), torch.zeros(1, 1, dtype=torch.int64)
        )
        with pytest.raises(KernelArgumentError, match=r"noise: shape \[1\], expected \[2\]"):
            block_verify(block, torch.tensor([0]))
        with pytest.raises(KernelArgumentError, match="noise: dtype float32, expected int64"):
            block_verify(block, torch.zeros(2))

    def test_support_is_a_question_of_the_device(self, device):
        assert api.is_supported(torch.zeros(1, device=device))
        assert not api.is_supported(torch.zeros(1, device="meta"))
