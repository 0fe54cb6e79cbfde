"""What is timed of block verification: the real vocabulary at one and sixteen requests."""

from __future__ import annotations

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.block_verify import reference
from sparkserve_kernels.block_verify.api import Block, Verdict, block_verify

VOCABULARY = 129280
DRAFTS = 5


def cases() -> tuple[BenchCase, ...]:
    """Batches of 1 and 16 requests, all drafts live."""
    return _case(1), _case(16)


def draw(requests: int, seed: int, vocabulary: int = VOCABULARY) -> Block:
    """A target, and drafts drawn from a distribution near it."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    size = (requests, DRAFTS + 1, vocabulary)
    logits = torch.randn(size, generator=generator, device="cuda") * 3
    near = logits[:, :-1] + torch.randn(logits[:, :-1].shape, generator=generator, device="cuda")
    target, draft = torch.softmax(logits, dim=-1), torch.softmax(near, dim=-1)
    tokens = torch.multinomial(draft.view(-1, vocabulary), 1, generator=generator)
    return Block(target, draft, tokens.view(requests, DRAFTS))


def _case(requests: int) -> BenchCase:
    rows = 2 * (DRAFTS - 1) + 2

    def prepare(copies: int) -> Work:
        blocks = [draw(requests, seed) for seed in range(copies)]
        noise = torch.tensor([1, 0], device="cuda")
        stock = torch.compile(_stock, dynamic=False)
        return Work(
            ours=lambda index: block_verify(blocks[index], noise),
            stock=lambda index: stock(
                blocks[index].target, blocks[index].draft, blocks[index].tokens
            ),
        )

    return BenchCase(
        op="block_verify",
        name=f"requests={requests}",
        rows=requests,
        bytes_moved=requests * rows * VOCABULARY * 4,
        bytes_per_copy=requests * (2 * DRAFTS + 1) * VOCABULARY * 4,
        prepare=prepare,
        stock_name="torch.compile of the reference",
        gate=lambda seed: _gate(requests, seed),
        max_error=0.0,
    )


def _stock(target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor) -> Verdict:
    """The reference's law with torch's own random numbers."""
    block = Block(target, draft, tokens)
    weights, chances = reference.acceptance(block)
    position = torch.arange(1, DRAFTS + 1, device=target.device)
    accepted = torch.where(torch.rand_like(chances) < chances, position, 0).amax(dim=1)
    left = reference.residual(block, weights, accepted)
    token = (left / -torch.log(torch.rand_like(left))).argmax(dim=1)
    return Verdict(accepted.to(torch.int32), token)


def _gate(requests: int, seed: int) -> float:
    """Part of the verdicts over 8 calls that differ from the reference's in float64.

    Where a draw lies within 1e-6 of its chance, fp32 may decide otherwise: those are left out.
    """
    wrong, judged = 0, 0
    for call in range(8):
        block = draw(requests, seed + call)
        noise = torch.tensor([seed, call], device="cuda")
        exact = Block(block.target.double(), block.draft.double(), block.tokens)
        ours, want = block_verify(block, noise), reference.block_verify(exact, noise)
        clear = reference.margins(exact, noise) > 1e-6
        differs = (ours.accepted != want.accepted) | (ours.token != want.token)
        wrong += int((differs & clear).sum())
        judged += int(clear.sum())
    return wrong / judged if judged else 1.0
