"""What is timed of the combination: a decode step and a prefill chunk."""

from __future__ import annotations

from functools import partial

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.hc_combine_norm import reference
from sparkserve_kernels.hc_combine_norm.api import RMS_EPS, STREAMS, hc_combine_norm

HIDDEN = 5120


def cases() -> tuple[BenchCase, ...]:
    """Few and many rows."""
    return tuple(_case(rows) for rows in (6, 4096))


def _case(rows: int) -> BenchCase:
    moved = rows * (2 * HIDDEN * (STREAMS + 1) + 4 * STREAMS) + 2 * HIDDEN
    return BenchCase(
        op="hc_combine_norm",
        name=f"rows={rows}",
        rows=rows,
        bytes_moved=moved,
        bytes_per_copy=moved,
        prepare=partial(_prepare, rows),
        stock_name="torch.compile",
        gate=partial(_gate, rows),
        max_error=2e-3,
    )


def _inputs(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    residual = normal(rows, STREAMS, HIDDEN).bfloat16()
    return residual, normal(rows, STREAMS), normal(HIDDEN).bfloat16()


def _prepare(rows: int, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    held = [_inputs(rows, generator) for _ in range(copies)]
    outs = [torch.empty_like(inputs[0][:, 0]) for inputs in held]
    compiled = torch.compile(reference.hc_combine_norm, dynamic=False)

    def ours(index: int) -> torch.Tensor:
        residual, pre, weight = held[index]
        return hc_combine_norm(residual, pre, weight, out=outs[index])

    def theirs(index: int) -> torch.Tensor:
        result: torch.Tensor = compiled(*held[index])
        return result

    return Work(ours, theirs)


def _gate(rows: int, seed: int) -> float:
    """Relative L2 of the difference from float64, in which the combination is rounded too."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    residual, pre, weight = _inputs(rows, generator)
    got = hc_combine_norm(residual, pre, weight).double()
    y = torch.einsum("mk,mkh->mh", pre.double(), residual.double())
    y = y.float().bfloat16().double()
    want = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + RMS_EPS) * weight.double()
    return float((got - want).norm() / want.norm())
