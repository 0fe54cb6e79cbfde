"""Benchmark cases of linears by a twin."""

from __future__ import annotations

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.split_k import SplitWorkspace
from sparkserve_kernels.twin_linear import api
from sparkserve_kernels.twin_linear.shipped import LAYERS
from sparkserve_kernels.twin_linear.twin import Twin, restore_weight

MAX_RELATIVE_L2 = {torch.bfloat16: 2.5e-3, torch.float32: 1e-5}
"""bf16 rounds by up to 2^-9 of a value; fp32 sums of 15,360 products stay far below 1e-5."""
OUT = {"draft head": torch.float32}
BARS = {
    "wo_a": Bar(read_fraction=0.65),
    "draft head": Bar(read_fraction=0.65, speedup=1.4),
    "draft main_proj": Bar(),
}
ROWS = {"wo_a": (6, 48, 192), "draft head": (6, 40), "draft main_proj": (5,)}


def cases() -> tuple[BenchCase, ...]:
    """Every layer at its rows; the bars hold for the first of them."""
    return tuple(
        _case(layer, rows, bar if rows == ROWS[layer][0] else Bar())
        for layer, bar in BARS.items()
        for rows in ROWS[layer]
    )


def draw(layer: str, generator: torch.Generator) -> Twin:
    """A twin of random bytes (no NaN) with exponents of a trained layer's size."""
    groups, columns, k = LAYERS[layer]
    block_rows = 1 if layer == "draft main_proj" else 32
    device = generator.device
    q = torch.randint(0, 256, (groups, columns, k), generator=generator, device=device)
    q = torch.where(q & 0x7F == 0x7F, 0, q).to(torch.uint8).view(torch.float8_e4m3fn)
    shape = (groups, columns // block_rows, k // 32)
    exponents = torch.randint(112, 119, shape, generator=generator, device=device)
    return Twin(q, exponents.to(torch.uint8), exact=True)


def _case(layer: str, rows: int, bar: Bar) -> BenchCase:
    groups, columns, k = LAYERS[layer]
    dtype = OUT.get(layer, torch.bfloat16)
    block_rows = 1 if layer == "draft main_proj" else 32
    weight_bytes = groups * columns * k + groups * columns // block_rows * (k // 32)
    row_bytes = rows * groups * (2 * k + columns * dtype.itemsize)

    def prepare(copies: int) -> Work:
        return _work(layer, rows, copies)

    def gate(seed: int) -> float:
        return _error(layer, rows, seed)

    return BenchCase(
        op="twin_linear",
        name=f"{layer} rows={rows}",
        rows=rows,
        bytes_moved=weight_bytes + row_bytes,
        bytes_per_copy=weight_bytes,
        prepare=prepare,
        stock_name="cuBLAS bf16",
        gate=gate,
        max_error=MAX_RELATIVE_L2[dtype],
        flops=2 * rows * groups * columns * k,
        bar=bar,
    )


def _draw_rows(layer: str, rows: int, generator: torch.Generator) -> torch.Tensor:
    groups, _, k = LAYERS[layer]
    x = torch.randn((rows, groups, k), generator=generator, device=generator.device)
    return x.to(torch.bfloat16)


def _work(layer: str, rows: int, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(copies)
    twins = [draw(layer, generator) for _ in range(copies)]
    # Half as many of twice the bytes keep the stock layer out of the L2 as well.
    wide = [restore_weight(twin).transpose(1, 2) for twin in twins[: max(2, copies // 2)]]
    x = _draw_rows(layer, rows, generator)
    by_group = x.transpose(0, 1).contiguous()
    workspace = SplitWorkspace.on(x.device)
    dtype = OUT.get(layer, torch.bfloat16)

    def ours(index: int) -> torch.Tensor:
        return api.twin_linear(x, twins[index], out_dtype=dtype, workspace=workspace)

    def stock(index: int) -> torch.Tensor:
        weight = wide[index % len(wide)]
        if len(weight) == 1:
            return torch.matmul(by_group[0], weight[0])
        return torch.bmm(by_group, weight)

    return Work(ours=ours, stock=stock)


def _error(layer: str, rows: int, seed: int) -> float:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    twin, x = draw(layer, generator), _draw_rows(layer, rows, generator)
    have = api.twin_linear(x, twin, out_dtype=OUT.get(layer, torch.bfloat16))
    worst = torch.zeros((), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(worst)
    step = 4096
    for start in range(0, twin.shape[1], step):
        part = slice(start, start + step)
        lines = slice(start // twin.block_rows, (start + step) // twin.block_rows)
        weight = restore_weight(Twin(twin.q[:, part], twin.exponents[:, lines], exact=True))
        want = torch.einsum("mgk,gnk->mgn", x.double(), weight.double())
        worst += (have[:, :, part].double() - want).square().sum()
        total += want.square().sum()
    return float((worst / total).sqrt())
