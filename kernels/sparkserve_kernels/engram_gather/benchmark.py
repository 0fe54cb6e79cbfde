"""What is timed of the gather: a decode step and a prefill chunk, by TP4's columns and by all.

Ids and rows are never in a cache. Results go where a step's results go: into memory that the
allocator hands out again, ours like the stock alternative's.
"""

from __future__ import annotations

from functools import partial

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.engram_gather.api import engram_gather
from sparkserve_kernels.engram_gather.table import RECORD_BYTES, VALUES, RowTable

TABLE_ROWS = 1 << 23
"""2.1 GiB of rows: no id is found in a cache by chance."""
GATE_ROWS = 1 << 20
BYTES_PER_ID = 8 + RECORD_BYTES + 2 * VALUES
COLUMNS = 24
COLUMNS_TP4 = 6


def cases() -> tuple[BenchCase, ...]:
    """Packed records at all four sizes, and two planes at the largest."""
    return (
        _case(6, COLUMNS_TP4, "records", Bar(below_us=12.0)),
        _case(6, COLUMNS, "records", Bar(below_us=12.0)),
        _case(4096, COLUMNS_TP4, "records", Bar(read_fraction=0.6)),
        _case(4096, COLUMNS, "records", Bar(read_fraction=0.6)),
        _case(4096, COLUMNS, "planes", Bar(read_fraction=0.6)),
    )


def _case(rows: int, columns: int, layout: str, bar: Bar) -> BenchCase:
    moved = rows * columns * BYTES_PER_ID
    return BenchCase(
        op="engram_gather",
        name=f"{layout} rows={rows} columns={columns}",
        rows=rows,
        bytes_moved=moved,
        bytes_per_copy=rows * columns * (8 + RECORD_BYTES),
        copies=8192 if rows == 6 else None,
        prepare=partial(_prepare, (rows, columns), layout),
        stock_name="torch.compile",
        gate=partial(_gate, (rows, columns), layout),
        max_error=0.0,
        bar=bar,
    )


def random_table(
    rows: int, layout: str, generator: torch.Generator
) -> tuple[RowTable, torch.Tensor, torch.Tensor]:
    """A table of random rows with its values [rows, 256] and scales [rows, 8] as views of it."""
    device = generator.device
    records = torch.randint(
        0, 256, (rows, RECORD_BYTES), dtype=torch.uint8, device=device, generator=generator
    )
    values, scales = records[:, :VALUES], records[:, VALUES:]
    values[(values & 0x7F) == 0x7F] = 0
    scales.clamp_(97, 157)
    if layout == "records":
        return RowTable.of_records(records), values, scales
    values, scales = values.contiguous(), scales.contiguous()
    return RowTable.of_planes(values, scales), values, scales


def _prepare(shape: tuple[int, int], layout: str, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    table, values, scales = random_table(TABLE_ROWS, layout, generator)
    size = (copies, *shape)
    ids = torch.randint(0, TABLE_ROWS, size, device="cuda", generator=generator)
    stock = torch.compile(_stock, dynamic=False)

    def ours(index: int) -> torch.Tensor:
        return engram_gather(ids[index], table)

    def theirs(index: int) -> torch.Tensor:
        result: torch.Tensor = stock(ids[index], values, scales)
        return result

    return Work(ours, theirs)


def _stock(ids: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The reference, its scales decoded by bits: the compiler knows no e8m0."""
    flat = ids.view(-1)
    owned = (flat >= 0) & (flat < values.shape[0])
    rows = torch.where(owned, flat, 0)
    bytes_ = scales[rows].int()
    factors = torch.where(bytes_ == 0, 0x00400000, bytes_ << 23).view(torch.float32)
    exact = values[rows].view(torch.float8_e4m3fn).float().view(-1, factors.shape[1], 32)
    decoded = (exact * factors[:, :, None]).flatten(1).bfloat16()
    return torch.where(owned[:, None], decoded, 0.0).view(*ids.shape, -1)


def _gate(shape: tuple[int, int], layout: str, seed: int) -> float:
    """Part of the elements that differ from float64 rounded once."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    table, values, scales = random_table(GATE_ROWS, layout, generator)
    foreign = -(GATE_ROWS // 8)
    ids = torch.randint(foreign, GATE_ROWS, shape, device="cuda", generator=generator)
    flat = ids.view(-1).clamp(min=0)
    exact = values[flat].view(torch.float8_e4m3fn).float().double().view(-1, scales.shape[1], 32)
    exact = exact * torch.exp2(scales[flat].double() - 127)[:, :, None]
    want = torch.where(ids.view(-1, 1) >= 0, exact.flatten(1), 0.0)
    # Four significant bits: the way through fp32 is exact, so this rounds once.
    differs = engram_gather(ids, table).view(-1, VALUES) != want.float().bfloat16()
    return float(differs.double().mean())
