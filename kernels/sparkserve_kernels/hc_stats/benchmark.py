"""What is timed of the gates: the walk beside the split-K kernel, and both beside torch."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.hc_stats import reference
from sparkserve_kernels.hc_stats.api import OUTPUTS, SLICE, STREAMS, HcStats, cut_weight, hc_stats
from sparkserve_kernels.hc_stats.tiles import Mode

HIDDEN = 5120
WIDTH = STREAMS * HIDDEN
GATE_ROWS = 512
"""Rows that the gate computes at a time in float64."""
Stock = Literal["splitk", "torch.compile"]


def cases() -> tuple[BenchCase, ...]:
    """A decode step, and prefill chunks in both modes."""
    return (
        _case("splitk", 6, "torch.compile", Bar()),
        _case("splitk", 4096, "torch.compile", Bar(read_fraction=0.5)),
        _case("walk", 512, "splitk", Bar()),
        _case("walk", 1024, "splitk", Bar()),
        _case("walk", 2048, "splitk", Bar()),
        _case("walk", 4096, "splitk", Bar(read_fraction=0.6, speedup=1.2)),
        _case("walk", 4096, "torch.compile", Bar()),
    )


def _case(mode: Mode, rows: int, stock: Stock, bar: Bar) -> BenchCase:
    """The walk reads weights cut beforehand, as it is meant to; its stock alternative too."""
    inputs = 2 * rows * WIDTH + (6 if mode == "walk" else 4) * OUTPUTS * WIDTH
    outputs = 4 * OUTPUTS * rows
    # Every slice's sums written and read again are what this mode is, so they count.
    partials = 2 * (WIDTH // SLICE) * rows * (OUTPUTS + 1) * 4 if mode == "splitk" else 0
    return BenchCase(
        op="hc_stats",
        name=f"{mode} rows={rows} against {stock}",
        rows=rows,
        bytes_moved=inputs + outputs + partials,
        bytes_per_copy=inputs,
        prepare=partial(_prepare, rows, mode, stock),
        stock_name=stock,
        gate=partial(_gate, rows, mode),
        max_error=2e-5,
        bar=bar,
        flops=2 * rows * OUTPUTS * WIDTH,
    )


def _inputs(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    residual = normal(rows, STREAMS, HIDDEN).bfloat16()
    return residual, normal(OUTPUTS, WIDTH) * WIDTH**-0.5, 1 + 0.1 * normal(3), normal(OUTPUTS)


def _prepare(rows: int, mode: Mode, stock: Stock, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    held = [_inputs(rows, generator) for _ in range(copies)]
    cut = [cut_weight(inputs[1]) if mode == "walk" else None for inputs in held]
    compiled = torch.compile(reference.hc_stats, dynamic=False)

    def ours(index: int) -> HcStats:
        residual, fn, scale, base = held[index]
        return hc_stats(residual, fn, scale, base, parts=cut[index], mode=mode)

    def theirs(index: int) -> HcStats:
        residual, fn, scale, base = held[index]
        if stock == "splitk":
            return hc_stats(residual, fn, scale, base, parts=cut[index], mode="splitk")
        result: HcStats = compiled(residual, fn, scale, base)
        return result

    return Work(ours, theirs)


def _gate(rows: int, mode: Mode, seed: int) -> float:
    """Largest difference of any output from float64; infinite where the modes' bits differ."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    residual, fn, scale, base = _inputs(rows, generator)
    cut = cut_weight(fn)
    splitk = hc_stats(residual, fn, scale, base, mode="splitk")
    walk = hc_stats(residual, fn, scale, base, parts=cut, mode="walk")
    got, other = (walk, splitk) if mode == "walk" else (splitk, walk)
    if not all(torch.equal(one, two) for one, two in zip(got, other, strict=True)):
        return math.inf
    worst = 0.0
    gates = (fn.double(), scale.double(), base.double())
    for start in range(0, rows, GATE_ROWS):
        part = slice(start, start + GATE_ROWS)
        want = reference.hc_stats(residual[part], *gates)
        for one, two in zip(got, want, strict=True):
            worst = max(worst, float((one[part].double() - two).abs().max()))
    return worst
