"""Block verification: its law by enumeration, known answers, and real vocabularies."""

import itertools

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
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs, real sizes or many draws"
)
V = 3
"""Tokens of the toy models."""


def distributions(generator, *shape, sharpness=1.5):
    """Random distributions over the last axis, in float64 on the CPU."""
    logits = torch.randn(*shape, generator=generator, device=generator.device).double().cpu()
    return torch.softmax(sharpness * logits, dim=-1)


class ToyModel:
    """A target and a draft whose distributions depend on the tokens so far."""

    def __init__(self, generator, depth):
        self.p = {
            context: distributions(generator, V)
            for length in range(depth + 2)
            for context in itertools.product(range(V), repeat=length)
        }
        self.q = {context: distributions(generator, V) for context in self.p}
        self.depth = depth

    def block(self, tokens, live=None):
        """The block of one drafted path."""
        path = [tuple(tokens[:i]) for i in range(len(tokens) + 1)]
        return Block(
            torch.stack([self.p[c] for c in path])[None],
            torch.stack([self.q[c] for c in path[:-1]])[None],
            torch.tensor([tokens]),
            None if live is None else torch.tensor([1 + live]),
        )

    def committed_law(self, length, live=None):
        """Law of the first tokens: drafts accepted, then the correction, then the target itself."""
        law = dict.fromkeys(itertools.product(range(V), repeat=length), 0.0)
        for tokens in itertools.product(range(V), repeat=self.depth):
            drafted = 1.0
            for i, token in enumerate(tokens):
                drafted *= float(self.q[tokens[:i]][token])
            block = self.block(tokens, live)
            weights, chances = reference.acceptance(block)
            h = chances[0].tolist()
            for accepted in range(self.depth + 1):
                chance = h[accepted - 1] if accepted else 1.0
                for later in h[accepted:]:
                    chance *= 1.0 - later
                left = reference.residual(block, weights, torch.tensor([accepted]))[0]
                for token, share in enumerate((left / left.sum()).tolist()):
                    weight = drafted * chance * share
                    self._extend(law, (*tokens[:accepted], token), weight)
        return law

    def target_law(self, length):
        law = {}
        for tokens in itertools.product(range(V), repeat=length):
            law[tokens] = 1.0
            for i, token in enumerate(tokens):
                law[tokens] *= float(self.p[tokens[:i]][token])
        return law

    def _extend(self, law, start, weight):
        length = len(next(iter(law)))
        if len(start) >= length:
            law[start[:length]] += weight
            return
        for token in range(V):
            self._extend(law, (*start, token), weight * float(self.p[start][token]))


def distance(one, other):
    return max(abs(one[key] - other[key]) for key in one)


class TestLaw:
    """All drafts, decisions and corrections enumerated in float64."""

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_it_is_the_targets(self, depth, generator):
        model = ToyModel(generator, depth)
        for length in range(1, depth + 2):
            assert distance(model.committed_law(length), model.target_law(length)) < 4e-16

    @pytest.mark.parametrize("live", [0, 1, 2])
    def test_it_stays_so_when_drafts_are_dead(self, live, generator):
        model = ToyModel(generator, 2)
        for length in (1, 2, 3):
            assert distance(model.committed_law(length, live), model.target_law(length)) < 4e-16

    def test_dead_positions_are_a_target_without_the_draft(self, generator):
        """q = 0 and p(X) = 0 there: h is w at the last live draft and 0 after."""
        model = ToyModel(generator, 3)
        block = model.block((2, 0, 1), live=1)
        weights, chances = reference.acceptance(block)
        assert chances[0, 0] == weights[0, 1]
        assert weights[0, 2:].tolist() == [0.0, 0.0]
        assert chances[0, 1:].tolist() == [0.0, 0.0]
        dead = Block(block.target.clone(), block.draft.clone(), block.tokens)
        dead.draft[0, 1:] = 0.0
        dead.target[0, 1, 0] = dead.target[0, 2, 1] = 0.0
        dead.target[0, 1] /= dead.target[0, 1].sum()
        _, by_zeros = reference.acceptance(dead)
        assert torch.allclose(by_zeros, chances, rtol=1e-15, atol=0)

    def test_it_stays_so_with_zeros_of_top_k(self, generator):
        model = ToyModel(generator, 2)
        for context, p in model.p.items():
            p[int(torch.tensor(context).sum()) % V if context else 1] = 0.0
            p /= p.sum()
        for context, q in model.q.items():
            q[(len(context) + 1) % V] = 0.0
            q /= q.sum()
        for length in (1, 2, 3):
            assert distance(model.committed_law(length), model.target_law(length)) < 4e-16

    def test_it_accepts_more_than_token_by_token(self, generator):
        """Why it exists: the expected length is never less, and here is more."""
        model = ToyModel(generator, 3)
        blockwise = tokenwise = 0.0
        for tokens in itertools.product(range(V), repeat=3):
            drafted, kept = 1.0, 1.0
            _, chances = reference.acceptance(model.block(tokens))
            h = chances[0].tolist()
            for i, token in enumerate(tokens):
                drafted *= float(model.q[tokens[:i]][token])
            for i, token in enumerate(tokens):
                kept *= min(1.0, float(model.p[tokens[:i]][token] / model.q[tokens[:i]][token]))
                tokenwise += drafted * kept
                longer = 1.0
                for later in h[i:]:
                    longer *= 1.0 - later
                blockwise += drafted * (1.0 - longer)
        assert blockwise > tokenwise + 1e-3

    def test_equal_distributions_accept_everything(self, generator):
        model = ToyModel(generator, 3)
        model.q = model.p
        for tokens in itertools.product(range(V), repeat=3):
            _, chances = reference.acceptance(model.block(tokens))
            assert chances[0].tolist() == [1.0, 1.0, 1.0]

    def test_one_draft_is_plain_rejection(self, generator):
        model = ToyModel(generator, 1)
        for token in range(V):
            weights, chances = reference.acceptance(model.block((token,)))
            p, q = model.p[()], model.q[()]
            assert chances[0, 0] == min(1.0, p[token] / q[token])
            left = reference.residual(model.block((token,)), weights, torch.tensor([0]))
            assert torch.equal(left[0], (p - q).clamp(min=0.0))


class TestNoise:
    @pytest.mark.parametrize(
        ("counter", "key", "words"),
        [
            ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            (
                (0xFFFFFFFF,) * 4,
                (0xFFFFFFFF,) * 2,
                (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
            ),
            (
                (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                (0xA4093822, 0x299F31D0),
                (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            ),
        ],
    )
    def test_known_answers_of_random123(self, counter, key, words):
        got = random.philox(
            tuple(torch.tensor([word]) for word in counter), tuple(map(torch.tensor, key))
        )
        assert tuple(int(word) for word in got) == words

    def test_words_are_those_of_a_plain_philox(self):
        noise = torch.tensor([-(2**62) + 12345, (7 << 32) + 9])
        words = random.words_of(noise, 3, 5, random.RACE)
        seed, call = (int(value) % 2**64 for value in noise)
        for request, n in itertools.product(range(3), range(5)):
            want = plain_philox(
                [n, 2 * request + 1, call % 2**32, call >> 32], [seed % 2**32, seed >> 32]
            )
            assert [int(word[request, n]) for word in words] == want

    def test_times_are_those_of_float64(self):
        words = torch.cat([torch.arange(1000), 2**32 - 1 - torch.arange(1000)])
        around = (2**30 - 500) + torch.arange(1000)
        words = torch.cat([words, around, torch.arange(0, 2**32, 42_949)])
        exact = -torch.log1p(-(words.double() + 0.5) / 2**32)
        times = random.exponential(words)
        assert (times > 0).all()
        assert ((times.double() - exact).abs() / exact).max() < 2.0**-21

    def test_draws_lie_below_one(self):
        ends = random.uniform(torch.tensor([0, 2**32 - 1]))
        assert ends.tolist() == [0.0, 1.0 - 2.0**-24]


def plain_philox(counter, key):
    """Philox4x32-10 on Python's integers."""
    c, k = list(counter), list(key)
    for turn in range(10):
        if turn:
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        one, two = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(two >> 32) ^ c[1] ^ k[0], two % 2**32, (one >> 32) ^ c[3] ^ k[1], one % 2**32]
    return c


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
    def test_many_draws_follow_the_target(self, generator, device):
        """Counts of the first two committed tokens over 2^20 requests against the target's law."""
        model, requests = ToyModel(generator, 2), 1 << 20
        first = torch.multinomial(model.q[()], requests, replacement=True)
        after = torch.stack([model.q[(t,)] for t in range(V)])[first]
        second = torch.multinomial(after, 1)[:, 0]
        paths = torch.stack(
            [model.block(t).target[0] for t in itertools.product(range(V), repeat=2)]
        )
        drafts = torch.stack(
            [model.block(t).draft[0] for t in itertools.product(range(V), repeat=2)]
        )
        path = first * V + second
        block = Block(
            paths[path].float().to(device),
            drafts[path].float().to(device),
            torch.stack([first, second], dim=1).to(device),
        )
        got = block_verify(block, seeds(11, device))
        accepted, token = got.accepted.long().cpu(), got.token.cpu()
        one = torch.where(accepted >= 1, first, token)
        rest = torch.stack([model.p[(t,)] for t in range(V)])[one]
        own = torch.multinomial(rest, 1)[:, 0]
        two = torch.where(accepted >= 2, second, torch.where(accepted == 1, token, own))
        counts = torch.bincount(one * V + two, minlength=V * V).double()
        want = torch.tensor([model.target_law(2)[t] for t in itertools.product(range(V), repeat=2)])
        want = want.double() * requests
        assert (((counts - want) ** 2) / want).sum() < 40  # chi-square of 8 degrees: 1 in 3e5

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
