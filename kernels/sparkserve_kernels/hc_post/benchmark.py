"""What is timed of the mix: a decode step and a prefill chunk."""

from __future__ import annotations

from functools import partial

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.hc_post import reference
from sparkserve_kernels.hc_post.api import STREAMS, hc_post

HIDDEN = 5120


def cases() -> tuple[BenchCase, ...]:
    """Few and many rows."""
    return tuple(_case(rows) for rows in (6, 4096))


def _case(rows: int) -> BenchCase:
    moved = rows * (2 * HIDDEN * (2 * STREAMS + 1) + 4 * STREAMS * (STREAMS + 1))
    return BenchCase(
        op="hc_post",
        name=f"rows={rows}",
        rows=rows,
        bytes_moved=moved,
        bytes_per_copy=moved,
        prepare=partial(_prepare, rows),
        stock_name="torch.compile",
        gate=partial(_gate, rows),
        max_error=2.0**-8,
    )


def _inputs(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    residual, x = normal(rows, STREAMS, HIDDEN).bfloat16(), normal(rows, HIDDEN).bfloat16()
    return residual, x, normal(rows, STREAMS), normal(rows, STREAMS, STREAMS)


def _prepare(rows: int, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    held = [_inputs(rows, generator) for _ in range(copies)]
    outs = [torch.empty_like(inputs[0]) for inputs in held]
    compiled = torch.compile(reference.hc_post, dynamic=False)

    def ours(index: int) -> torch.Tensor:
        residual, x, post, comb = held[index]
        return hc_post(residual, x, post, comb, out=outs[index])

    def theirs(index: int) -> torch.Tensor:
        result: torch.Tensor = compiled(*held[index])
        return result

    return Work(ours, theirs)


def _gate(rows: int, seed: int) -> float:
    """Largest difference from float64, by the size of what is added up."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    residual, x, post, comb = _inputs(rows, generator)
    return largest_error(hc_post(residual, x, post, comb), residual, x, post, comb)


def largest_error(got: torch.Tensor, *inputs: torch.Tensor) -> float:
    """Largest difference of a mix of the inputs from float64; NaN where any of it is NaN."""
    worst = torch.zeros((), dtype=torch.float64, device=got.device)
    for row in range(0, len(got), 512):
        part = slice(row, row + 512)
        exact = [value[part].double() for value in inputs]
        want = reference.hc_post(exact[0], exact[1], exact[2], exact[3])
        sizes = [value.abs() for value in exact]
        size = reference.hc_post(sizes[0], sizes[1], sizes[2], sizes[3])
        # Not Python's max, which drops a NaN.
        worst = torch.maximum(worst, ((got[part].double() - want).abs() / size).max())
    return float(worst)
