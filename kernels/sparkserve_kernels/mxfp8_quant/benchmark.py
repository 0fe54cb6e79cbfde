"""Benchmark cases of the MXFP8 row quantiser."""

from __future__ import annotations

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.mxfp8_quant import api, reference
from sparkserve_kernels.numerics.elements import e4m3_decode, e8m0_decode

HIDDEN = 5120


def cases() -> tuple[BenchCase, ...]:
    """A decode step and a prefill chunk of the hidden size."""
    return _case(6, Bar(below_us=12.0)), _case(4096, Bar(read_fraction=0.6))


def _case(rows: int, bar: Bar) -> BenchCase:
    read, written = rows * HIDDEN * 2, rows * HIDDEN * 33 // 32

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        x = torch.randn((rows, HIDDEN), generator=generator, device="cuda")
        return x.to(torch.bfloat16)

    def prepare(copies: int) -> Work:
        inputs = [draw(index) for index in range(copies)]
        stock = torch.compile(reference.mxfp8_quant)
        return Work(
            ours=lambda index: api.mxfp8_quant(inputs[index]),
            stock=lambda index: stock(inputs[index]),
        )

    def gate(seed: int) -> float:
        return worst_step(draw(seed), *api.mxfp8_quant(draw(seed)))

    return BenchCase(
        op="mxfp8_quant",
        name=f"hidden rows={rows}",
        rows=rows,
        bytes_moved=read + written,
        bytes_per_copy=read,
        prepare=prepare,
        stock_name="torch.compile of the reference",
        gate=gate,
        max_error=1.0,
        bar=bar,
    )


def worst_step(x: torch.Tensor, q: torch.Tensor, scales: torch.Tensor) -> float:
    """Largest distance from the input in float64, in halves of e4m3's last place there.

    x: (M, K); q: (M, K), float8_e4m3fn; scales: (M, K/32), uint8. At most 1 when every value was
    rounded to a nearest one.
    """
    scale = e8m0_decode(scales).double().repeat_interleave(32, dim=1)
    wanted = x.double() / scale
    _, exponent = torch.frexp(wanted)
    half_step = torch.ldexp(torch.ones_like(wanted), (exponent - 1).clamp(min=-6) - 4)
    return float(((e4m3_decode(q).double() - wanted).abs() / half_step).max())
