"""Whole selections, from queries and keys to positions, against torch matmul and topk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.index_scores.keys import KeyPages, gather_records
from sparkserve_kernels.index_scores.reference import decode
from sparkserve_kernels.index_scores.reference import index_scores as reference_scores
from sparkserve_kernels.index_topk import reference
from sparkserve_kernels.index_topk.api import index_topk

KEYS = 262_144
SLOTS = 64
STOCK_BYTES = 1 << 30
"""Size of the product [rows, 32, keys] in bf16 that the stock alternative holds at a time."""
SAMPLED_ROWS = 16
STOCK = "torch bf16 matmul, compiled relu and weighted sum, topk, in row chunks"


@dataclass(frozen=True)
class Inputs:
    """Rows of one request whose last row sees all keys, and the keys in shuffled pages."""

    queries: torch.Tensor
    query_scales: torch.Tensor
    weights: torch.Tensor
    keys: KeyPages
    visible: torch.Tensor

    def part(self, begin: int, end: int) -> Inputs:
        """The rows [begin, end)."""
        some = slice(begin, end)
        return Inputs(
            self.queries[some],
            self.query_scales[some],
            self.weights[some],
            self.keys,
            self.visible[some],
        )

    def dequantised(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows, 32, 128], keys [keys, 128] and weights [rows, 32] in bf16 (exact)."""
        records = gather_records(self.keys, 0, KEYS)
        q = decode(self.queries, self.query_scales, torch.float32)
        k = decode(records[:, :64], records[:, 64:], torch.float32)
        return q.bfloat16(), k.bfloat16(), self.weights.bfloat16()


def draw(rows: int, seed: int) -> Inputs:
    """Random inputs on the GPU."""
    device = torch.device("cuda")
    generator = torch.Generator(device=device).manual_seed(seed)

    def bytes_between(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(
            low, high, shape, dtype=torch.uint8, device=device, generator=generator
        )

    pages = bytes_between(0, 256, KEYS // SLOTS, SLOTS * 68)
    pages[:, SLOTS * 64 :] = bytes_between(122, 126, KEYS // SLOTS, SLOTS * 4)
    table = torch.randperm(KEYS // SLOTS, device=device, generator=generator).int()[None]
    return Inputs(
        bytes_between(0, 256, rows, 32, 64),
        bytes_between(122, 126, rows, 32, 4),
        torch.randn((rows, 32), device=device, generator=generator),
        KeyPages(pages, table, SLOTS),
        torch.arange(KEYS - rows + 1, KEYS + 1, dtype=torch.int32, device=device),
    )


def select(given: Inputs) -> torch.Tensor:
    """Our selection."""
    return index_topk(given.queries, given.query_scales, given.weights, given.keys, given.visible)


@cache
def weighted() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Relu and the sum over heads of products [rows, 32, keys], compiled into one kernel."""

    def plain(products: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (products.relu() * weights[..., None]).float().sum(1)

    compiled: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.compile(
        plain, dynamic=False
    )
    return compiled


def stock_scores(
    q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """Scores [rows, keys] of a chunk of rows, in stock torch."""
    rows = q.shape[0]
    products = torch.matmul(q.reshape(-1, 128), k.T).view(rows, 32, KEYS)
    scores = weighted()(products, w)
    # The last rows of a context: all but the newest keys are visible to all of them.
    start = KEYS - 4096
    newest = torch.arange(start, KEYS, device=q.device)
    scores[:, start:].masked_fill_(newest >= visible[:, None], -torch.inf)
    return scores


def stock_chunks(rows: int) -> range:
    """First rows of the chunks."""
    return range(0, rows, max(1, min(rows, STOCK_BYTES // (32 * KEYS * 2))))


def _stock(given: Inputs) -> Callable[[], list[torch.Tensor]]:
    q, k, w = given.dequantised()
    rows = q.shape[0]
    starts = stock_chunks(rows)

    def call() -> list[torch.Tensor]:
        chosen = []
        for begin in starts:
            some = slice(begin, min(rows, begin + starts.step))
            scores = stock_scores(q[some], k, w[some], given.visible[some])
            chosen.append(torch.topk(scores, 512).indices)
        return chosen

    return call


def prepare(rows: int) -> Callable[[int], Work]:
    """Makes copies of the inputs."""

    def make(copies: int) -> Work:
        given = [draw(rows, copy) for copy in range(copies)]
        stock = [_stock(one) for one in given]
        return Work(ours=lambda i: select(given[i]), stock=lambda i: stock[i]())

    return make


def gate(rows: int) -> Callable[[int], float]:
    """Checks a selection of all rows on some of them."""

    def check(seed: int) -> float:
        given = draw(rows, seed)
        found = select(given)
        return max(_shortfall(given, found, row) for row in _sampled(rows))

    return check


def _sampled(rows: int) -> list[int]:
    return sorted({round(i * (rows - 1) / (SAMPLED_ROWS - 1)) for i in range(SAMPLED_ROWS)})


def _shortfall(given: Inputs, found: torch.Tensor, row: int) -> float:
    """By how much the best key left out beats the worst selected one, in float64 scores.

    Relative to the row's largest score; infinite where the selection is not that of the
    reference's fp32 scores.
    """
    one = given.part(row, row + 1)
    lines: tuple[Any, ...] = (one.queries, one.query_scales, one.weights, one.keys, one.visible)
    if not torch.equal(found[row : row + 1], reference.index_topk(*lines)):
        return float("inf")
    scores = reference_scores(*lines, dtype=torch.float64)[0]
    chosen = torch.zeros(KEYS, dtype=torch.bool, device=scores.device)
    chosen[found[row].long()] = True
    left_out = scores.masked_fill(chosen, -torch.inf).max()
    return max(0.0, float((left_out - scores[chosen].min()) / scores.abs().nan_to_num(0, 0).max()))


def case(rows: int, bar: Bar) -> BenchCase:
    """The op at one row count."""
    queries_bytes = rows * 32 * 68 + rows * 32 * 4
    return BenchCase(
        op="index_topk",
        name=f"rows={rows} keys={KEYS}",
        rows=rows,
        bytes_moved=KEYS * 68 + queries_bytes + rows * 512 * 4,
        bytes_per_copy=KEYS * 68 + rows * 32 * 68,
        prepare=prepare(rows),
        stock_name=STOCK,
        gate=gate(rows),
        max_error=1e-6,
        flops=2 * rows * KEYS * 32 * 128,
        bar=bar,
    )


def cases() -> tuple[BenchCase, ...]:
    """A prefill chunk and a decode step at the end of a long context."""
    return (case(4096, Bar(speedup=1.0)), case(6, Bar()))
