"""Benchmark cases of the index quantiser."""

from __future__ import annotations

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.index_quant import api, reference

HEADS = 32


def cases() -> tuple[BenchCase, ...]:
    """The index queries of a decode step and of a prefill chunk."""
    return _case(6), _case(4096)


def _case(rows: int) -> BenchCase:
    values = rows * HEADS * reference.WIDTH

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        shape = (rows, HEADS, reference.WIDTH)
        return torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)

    def prepare(copies: int) -> Work:
        inputs = [draw(index) for index in range(copies)]
        stock = torch.compile(reference.index_quant)
        return Work(
            ours=lambda index: api.index_quant(inputs[index]),
            stock=lambda index: stock(inputs[index]),
        )

    def gate(seed: int) -> float:
        x = draw(seed)
        return worst_step(x, *api.index_quant(x))

    return BenchCase(
        op="index_quant",
        name=f"queries rows={rows}",
        rows=rows,
        bytes_moved=values * 2 + values * 17 // 32,
        bytes_per_copy=values * 2,
        prepare=prepare,
        stock_name="torch.compile of the reference",
        gate=gate,
        max_error=1.0,
    )


def worst_step(x: torch.Tensor, payload: torch.Tensor, scales: torch.Tensor) -> float:
    """Largest distance from the input in float64, in halves of the step around it.

    x: (..., 128) with groups whose largest value is far above the floor; payload and scales as
    ``api.index_quant`` gives them. At most 1 when every value was rounded to a nearest one on the
    grid of the scale ``ceil_pow2(amax/6)``.
    """
    groups = x.double().unflatten(-1, (-1, reference.GROUP))
    # A GPU's log2 is not exact at powers of two; frexp is.
    part, exponent = torch.frexp(groups.abs().amax(-1, keepdim=True) / 6)
    scale = torch.ldexp(torch.ones_like(part), exponent - (part == 0.5).int())
    wanted = (groups / scale).abs()
    step = torch.ones_like(wanted)
    step[wanted < 2] = 0.5
    step[wanted > 4] = 2.0
    have = reference.index_dequant(payload, scales).double().unflatten(-1, (-1, reference.GROUP))
    return float(((have - groups).abs() / scale / (step / 2)).max())
