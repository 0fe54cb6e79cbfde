"""The law of block verification by enumeration in float64, and its noise by known answers."""

import itertools

import pytest
import torch
from sparkserve_kernels.block_verify import noise as random
from sparkserve_kernels.block_verify import reference
from sparkserve_kernels.block_verify.api import Block, block_verify

GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: a million requests"
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


class TestGpu:
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
        got = block_verify(block, torch.tensor([5, 11], device=device))
        accepted, token = got.accepted.long().cpu(), got.token.cpu()
        one = torch.where(accepted >= 1, first, token)
        rest = torch.stack([model.p[(t,)] for t in range(V)])[one]
        own = torch.multinomial(rest, 1)[:, 0]
        two = torch.where(accepted >= 2, second, torch.where(accepted == 1, token, own))
        counts = torch.bincount(one * V + two, minlength=V * V).double()
        want = torch.tensor([model.target_law(2)[t] for t in itertools.product(range(V), repeat=2)])
        want = want.double() * requests
        assert (((counts - want) ** 2) / want).sum() < 40  # chi-square of 8 degrees: 1 in 3e5
