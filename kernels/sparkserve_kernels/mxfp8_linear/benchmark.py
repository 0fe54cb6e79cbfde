"""Benchmark cases of the MXFP8 linear layer."""

from __future__ import annotations

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.mxfp8_linear import api, reference
from sparkserve_kernels.mxfp8_linear.shapes import LAYERS
from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant
from sparkserve_kernels.numerics.rules import mxfp8_dequantise, mxfp8_quantise
from sparkserve_kernels.split_k import SplitWorkspace

MAX_RELATIVE_L2 = 2e-3
BIG = Bar(read_fraction=0.65, speedup=1.4)
BARS = {
    "engram.wkv": BIG,
    "main_proj": BIG,
    "wq_b": Bar(speedup=1.2),
    "wo_b": Bar(speedup=1.2),
    "wqkv_a": Bar(speedup=1.0),
    "shared gate_up": Bar(speedup=1.0),
    "shared down": Bar(speedup=1.0),
    "indexer wq_b": Bar(),
}
"""At 6 rows, of the call that quantises its input as well as of the one that gets it quantised."""
_CHUNK_ROWS = 4096
"""Rows of a weight quantised at once: its bits as int64 would take gigabytes."""


def cases() -> tuple[BenchCase, ...]:
    """Every layer at one request's verify rows, both ways; some with more rows."""
    decode = tuple(
        _case(name, 6, quantised=quantised, bar=bar)
        for name, bar in BARS.items()
        for quantised in (False, True)
    )
    more = tuple(
        _case(name, rows, quantised=True, bar=Bar())
        for name, rows in (("wq_b", 48), ("wo_b", 96), ("wq_b", 4096), ("engram.wkv", 4096))
    )
    return decode + more


def draw_weight(
    shape: tuple[int, int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random MXFP8 weight (N, K) and its scales (N, K/32)."""
    q = torch.empty(shape, dtype=torch.float8_e4m3fn, device=generator.device)
    scales = torch.empty((shape[0], shape[1] // 32), dtype=torch.uint8, device=generator.device)
    for start in range(0, shape[0], _CHUNK_ROWS):
        rows = slice(start, min(start + _CHUNK_ROWS, shape[0]))
        size = (rows.stop - rows.start, shape[1])
        part = torch.randn(size, generator=generator, device=generator.device)
        q[rows], scales[rows] = mxfp8_quantise(part / shape[1] ** 0.5)
    return q, scales


def draw_rows(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Random bf16 rows."""
    x = torch.randn((rows, k), generator=generator, device=generator.device)
    return x.to(torch.bfloat16)


def _case(name: str, rows: int, *, quantised: bool, bar: Bar) -> BenchCase:
    columns, k = LAYERS[name]
    weight_bytes = columns * k * 33 // 32
    row_bytes = rows * k * 33 // 32 if quantised else rows * k * 2

    def prepare(copies: int) -> Work:
        return _work(name, rows, copies, quantised=quantised)

    def gate(seed: int) -> float:
        return _error(name, rows, seed, quantised=quantised)

    return BenchCase(
        op="mxfp8_linear",
        name=f"{name} rows={rows} {'quantised' if quantised else 'bf16'}",
        rows=rows,
        bytes_moved=weight_bytes + row_bytes + rows * columns * 2,
        bytes_per_copy=weight_bytes,
        prepare=prepare,
        stock_name="cuBLAS bf16",
        gate=gate,
        max_error=MAX_RELATIVE_L2,
        flops=2 * rows * columns * k,
        bar=bar,
    )


def _work(name: str, rows: int, copies: int, *, quantised: bool) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(copies)
    weights = [draw_weight(LAYERS[name], generator) for _ in range(copies)]
    # Half as many of twice the bytes keep the stock layer out of the L2 as well.
    wide = [
        mxfp8_dequantise(*weight).to(torch.bfloat16) for weight in weights[: max(2, copies // 2)]
    ]
    x = draw_rows(rows, LAYERS[name][1], generator)
    workspace = SplitWorkspace.on(x.device)
    q, scales = mxfp8_quant(x)

    def ours(index: int) -> torch.Tensor:
        if quantised:
            return api.mxfp8_linear(q, *weights[index], x_scales=scales, workspace=workspace)
        return api.mxfp8_linear(x, *weights[index], workspace=workspace)

    return Work(ours=ours, stock=lambda index: torch.matmul(x, wide[index % len(wide)].T))


def _error(name: str, rows: int, seed: int, *, quantised: bool) -> float:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    weight = draw_weight(LAYERS[name], generator)
    x = draw_rows(rows, LAYERS[name][1], generator)
    q, scales = mxfp8_quant(x)
    if quantised:
        have = api.mxfp8_linear(q, *weight, x_scales=scales)
    else:
        have = api.mxfp8_linear(x, *weight)
    worst = torch.zeros((), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(worst)
    for start in range(0, len(weight[0]), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        want = reference.exact(q, weight[0][part], weight[1][part], x_scales=scales)
        worst += (have[:, part].double() - want).square().sum()
        total += want.square().sum()
    return float((worst / total).sqrt())
