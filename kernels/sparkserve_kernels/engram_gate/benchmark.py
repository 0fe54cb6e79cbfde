"""What is timed of the gate: a decode step, more requests, and a prefill chunk."""

from __future__ import annotations

import math
from functools import partial

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.engram_gate import reference
from sparkserve_kernels.engram_gate.api import engram_gate

STREAMS, HIDDEN = 4, 5120
BYTES_PER_ROW = 2 * HIDDEN * (STREAMS + STREAMS + 1 + STREAMS)
"""x, key and value read, the result written."""
WEIGHT_BYTES = 2 * 2 * STREAMS * HIDDEN

Inputs = tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def cases() -> tuple[BenchCase, ...]:
    """The bars' two sizes, and 96 rows between them."""
    return (
        _case(6, Bar(below_us=12.0)),
        _case(96, Bar()),
        _case(4096, Bar(read_fraction=0.6)),
    )


def _case(rows: int, bar: Bar) -> BenchCase:
    return BenchCase(
        op="engram_gate",
        name=f"rows={rows}",
        rows=rows,
        bytes_moved=rows * BYTES_PER_ROW + WEIGHT_BYTES,
        bytes_per_copy=rows * (BYTES_PER_ROW - 2 * STREAMS * HIDDEN),
        prepare=partial(_prepare, rows),
        stock_name="torch.compile",
        gate=partial(_gate, rows),
        max_error=2**-8 + 1e-5,
        bar=bar,
    )


def random_inputs(rows: int, generator: torch.Generator) -> Inputs:
    """x, kv and both weights."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=generator.device, generator=generator).bfloat16()

    weights = (normal(STREAMS, HIDDEN), normal(STREAMS, HIDDEN))
    return normal(rows, STREAMS, HIDDEN), normal(rows, (STREAMS + 1) * HIDDEN), weights


def _prepare(rows: int, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    x, kv, weights = random_inputs(rows * copies, generator)
    x, kv = x.view(copies, rows, STREAMS, HIDDEN), kv.view(copies, rows, -1)
    stock = torch.compile(reference.engram_gate, dynamic=False)

    def ours(index: int) -> torch.Tensor:
        return engram_gate(x[index], kv[index], weights)

    def theirs(index: int) -> torch.Tensor:
        result: torch.Tensor = stock(x[index], kv[index], weights)
        return result

    return Work(ours, theirs)


def _gate(rows: int, seed: int) -> float:
    """Largest distance from float64, as a part of the terms that are added."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x, kv, weights = random_inputs(rows, generator)
    got = engram_gate(x, kv, weights)
    worst = 0.0
    for start in range(0, rows, 256):
        part = slice(start, start + 256)
        exact = reference.engram_gate(
            x[part].double(), kv[part].double(), (weights[0].double(), weights[1].double())
        )
        value = kv[part, -HIDDEN:].double()[:, None]
        terms = x[part].double().abs() + value.abs()
        relative = (got[part].double() - exact).abs() / terms.clamp(min=1e-30)
        if not bool(relative.isfinite().all()):
            return math.nan
        worst = max(worst, float(relative.max()))
    return worst
