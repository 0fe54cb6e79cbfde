"""Block verification in plain torch, also in float64, and the parts of its law."""

from __future__ import annotations

import torch

from sparkserve_kernels.block_verify import noise as random
from sparkserve_kernels.block_verify.rules import LEAST_DRAFT_PROBABILITY, Block, Verdict
from sparkserve_kernels.numerics.elementary import divide


def block_verify(block: Block, noise: torch.Tensor) -> Verdict:
    """As ``api.block_verify``."""
    weights, chances = acceptance(block)
    eta = random.uniform(random.words_of(noise, block.requests, block.drafts, random.ACCEPT)[0])
    position = torch.arange(1, block.drafts + 1, device=eta.device)
    accepted = torch.where(eta < chances, position, 0).amax(dim=1)
    left = residual(block, weights, accepted)
    times = random.race(noise, block.requests, block.vocabulary)
    token = divide(left.float(), times).argmax(dim=1)
    if block.greedy is not None:
        certain, likeliest = _greedy(block)
        accepted = torch.where(block.greedy, certain, accepted)
        token = torch.where(block.greedy, likeliest, token)
    return Verdict(accepted.to(torch.int32), token)


def margins(block: Block, noise: torch.Tensor) -> torch.Tensor:
    """[requests]: how far the closest decision was from going the other way, relative.

    Counts draws against chances and the first of the race against the second.
    """
    weights, chances = acceptance(block)
    eta = random.uniform(random.words_of(noise, block.requests, block.drafts, random.ACCEPT)[0])
    position = torch.arange(1, block.drafts + 1, device=eta.device)
    accepted = torch.where(eta < chances, position, 0).amax(dim=1)
    left = residual(block, weights, accepted)
    scores = left.double() / random.race(noise, block.requests, block.vocabulary).double()
    best = scores.topk(min(2, block.vocabulary), dim=1).values
    lead = (best[:, 0] - best[:, -1]) / best[:, 0] if block.vocabulary > 1 else best[:, 0]
    live = torch.where(chances > 0.0, (eta - chances).abs().double(), 1.0).amin(dim=1)
    return live.minimum(lead)


def live_drafts(block: Block) -> torch.Tensor:
    """[requests] int64: how many drafts count."""
    whole = torch.full((block.requests,), block.drafts, device=block.target.device)
    if block.live_lengths is None:
        return whole
    return (block.live_lengths[: block.requests] - 1).clamp(min=0).minimum(whole)


def acceptance(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights w_0..w_g [requests, g + 1] and chances h_1..h_g [requests, g], in the inputs' dtype.

    A dead position (past the live drafts) has a draft distribution of 0 and a target probability
    of 0 for its token: w = 0 and h = 0 there, and the last live position gets h = w. A draft
    outside the vocabulary, or whose target probability is NaN, has the probability 0.
    """
    live = live_drafts(block)
    known = (block.tokens >= 0) & (block.tokens < block.vocabulary)
    own = torch.where(known, block.tokens.long(), 0)[:, :, None]
    p = block.target[:, :-1].gather(2, own)[:, :, 0]
    p = torch.where(known & (p >= 0.0), p, 0.0)
    q = block.draft.gather(2, own)[:, :, 0].clamp(min=LEAST_DRAFT_PROBABILITY)
    weight = torch.ones_like(p[:, 0])
    weights = [weight]
    for i in range(block.drafts):
        weight = torch.where(i < live, (weight * p[:, i] / q[:, i]).clamp(max=1.0), 0.0)
        weights.append(weight)
    chances = []
    for i in range(1, block.drafts + 1):
        inner = weights[i]
        if i < block.drafts:
            mass = (inner[:, None] * block.target[:, i] - block.draft[:, i]).clamp(min=0.0).sum(1)
            whole = mass + (1.0 - inner)
            # 0/0: the weight is 1 and nothing is left over, so that a later draft is accepted.
            inner = torch.where(whole > 0.0, mass / whole, 1.0)
        chances.append(torch.where(i < live, inner, weights[i]))
    return torch.stack(weights, dim=1), torch.stack(chances, dim=1)


def residual(block: Block, weights: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    """[requests, vocabulary]: what the correction is drawn from, not normalised."""
    row = torch.arange(block.requests, device=accepted.device)
    p = block.target[row, accepted]
    behind = accepted >= live_drafts(block)
    q = block.draft[row, accepted.clamp(max=block.drafts - 1)]
    left = weights[row, accepted][:, None] * p - torch.where(behind[:, None], 0.0, q)
    left = left.clamp(min=0.0)
    return torch.where((left > 0.0).any(dim=1, keepdim=True), left, p)


def _greedy(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    highest = block.target.amax(dim=2, keepdim=True)
    best = (block.target == highest).int().argmax(dim=2)
    position = torch.arange(block.drafts, device=best.device)
    right = (best[:, :-1] == block.tokens) & (position < live_drafts(block)[:, None])
    accepted = right.int().cumprod(dim=1).sum(dim=1)
    return accepted, best.gather(1, accepted[:, None])[:, 0]
