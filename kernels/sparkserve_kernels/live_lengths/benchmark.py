"""What is timed of the live lengths: one request and the largest batch."""

from __future__ import annotations

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.live_lengths import api, reference
from sparkserve_kernels.live_lengths.rules import DRAFTS, LiveRule

RULE = api.by_threshold(0.1)


def cases() -> tuple[BenchCase, ...]:
    """Batches of 1 and 16 requests."""
    return _case(1), _case(16)


def _case(requests: int) -> BenchCase:
    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        return torch.rand((requests, DRAFTS), generator=generator, device="cuda")

    def prepare(copies: int) -> Work:
        inputs = [draw(seed) for seed in range(copies)]
        out = api.new_buffer(inputs[0].device)
        stock = torch.compile(_stock, dynamic=False)
        return Work(
            ours=lambda index: api.live_lengths(inputs[index], RULE, out),
            stock=lambda index: stock(inputs[index], RULE, out),
        )

    def gate(seed: int) -> float:
        confidence = draw(seed)
        ours = api.live_lengths(confidence, RULE, api.new_buffer(confidence.device))
        exact = torch.cumprod(confidence.double().cpu(), dim=1) >= RULE.as_fp32[0]
        want = 1 + torch.cumprod(exact.int(), dim=1).sum(dim=1).clamp(min=RULE.at_least)
        return float((ours[:requests].cpu() != want).double().mean())

    return BenchCase(
        op="live_lengths",
        name=f"requests={requests}",
        rows=requests,
        bytes_moved=requests * (4 * DRAFTS + 8),
        bytes_per_copy=requests * 4 * DRAFTS,
        prepare=prepare,
        stock_name="torch.compile of the reference",
        gate=gate,
        max_error=0.0,
        bar=Bar(below_us=12.0),
    )


def _stock(confidence: torch.Tensor, rule: LiveRule, out: torch.Tensor) -> torch.Tensor:
    return reference.live_lengths(confidence, rule, out)
