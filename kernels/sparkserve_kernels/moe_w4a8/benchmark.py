"""Benchmark cases of the routed experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.moe_w4a8 import api, reference
from sparkserve_kernels.moe_w4a8.launch import Experts, Rows
from sparkserve_kernels.moe_w4a8.plan import Geometry
from sparkserve_kernels.numerics.rules import GROUP

LIMIT = 10.0
BATCHED = 16
"""Up to so many experts, all of them used, a batched matmul is stock: on an H200 it took 106 us for
6 rows and 16 experts where the grouped one took 185."""
TARGET = Geometry(experts=384, slots=6, hidden=5120, inter=576)


def cases() -> tuple[BenchCase, ...]:
    """A verify step, batches of them, prefill chunks, and the draft's experts.

    The first has as many experts as it uses, so that both sides stream exactly those.
    """
    few = Geometry(experts=16, slots=6, hidden=5120, inter=576)
    draft = Geometry(experts=15, slots=3, hidden=5120, inter=576)
    return (
        _case("16 experts", 6, few, Bar(read_fraction=0.55, speedup=2.0)),
        _case("draft, 15 experts", 5, draft, Bar()),
        _case("384 experts", 96, TARGET, Bar()),
        _case("384 experts", 1024, TARGET, Bar()),
        _case("384 experts", 4096, TARGET, Bar(speedup=1.0)),
    )


@dataclass(frozen=True)
class Inputs:
    """One copy of what a call reads."""

    rows: Rows
    experts: Experts


def draw(rows: int, geometry: Geometry, seed: int) -> Inputs:
    """Random activations and weights; routes spread evenly, each expert used where rows allow."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    e, hidden, inter = geometry.experts, geometry.hidden, geometry.inter

    def codes(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(
            low, high, shape, generator=generator, device="cuda", dtype=torch.uint8
        )

    # Token after token takes the next experts of a shuffled ring: all different within a token.
    ring = torch.randperm(e, generator=generator, device="cuda")
    at = torch.arange(rows * geometry.slots, device="cuda") % e
    ids = ring[at].reshape(rows, geometry.slots).to(torch.int32)
    if rows * geometry.slots > 4 * e:
        scores = torch.rand((rows, e), generator=generator, device="cuda")
        ids = scores.topk(geometry.slots, dim=1).indices.to(torch.int32)
    x = torch.randn((rows, hidden), generator=generator, device="cuda").to(torch.bfloat16)
    weights = torch.rand((rows, geometry.slots), generator=generator, device="cuda")
    return Inputs(
        Rows(x, None, ids, weights),
        Experts(
            codes(0, 256, e, 2 * inter, hidden // 2),
            codes(114, 120, e, 2 * inter, hidden // GROUP),
            codes(0, 256, e, hidden, inter // 2),
            codes(114, 120, e, hidden, inter // GROUP),
        ),
    )


def call(inputs: Inputs, scratch: api.Scratch | None = None) -> torch.Tensor:
    """One call of the op."""
    rows, experts = inputs.rows, inputs.experts
    return api.moe_w4a8(
        rows.x,
        rows.ids,
        rows.weights,
        experts.w13,
        experts.s13,
        experts.w2,
        experts.s2,
        limit=LIMIT,
        scratch=scratch,
    )


@dataclass(frozen=True)
class Stock:
    """bf16 experts for torch's batched and grouped matmul."""

    w13: torch.Tensor
    w2: torch.Tensor

    @classmethod
    def of(cls, experts: Experts) -> Stock:
        """Dequantise, a few experts at a time: fp32 of all of them would take 14 GB."""

        def wide(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
            parts = [
                reference.dequantise(packed[at : at + 8], scales[at : at + 8]).to(torch.bfloat16)
                for at in range(0, packed.shape[0], 8)
            ]
            return torch.cat(parts)

        return cls(wide(experts.w13, experts.s13), wide(experts.w2, experts.s2))

    def few(self, rows: Rows) -> torch.Tensor:
        """Every expert on every row in one batched matmul each; fastest where all are used."""
        inter = self.w2.shape[2]
        both = torch.matmul(rows.x, self.w13.transpose(1, 2))
        gate = torch.nn.functional.silu(both[..., inter:].clamp(max=LIMIT))
        inner = gate * both[..., :inter].clamp(-LIMIT, LIMIT)
        outer = torch.matmul(inner, self.w2.transpose(1, 2))
        token = torch.arange(rows.x.shape[0], device=rows.x.device)[:, None]
        picked = outer[rows.ids.long(), token].float()
        return (picked * rows.weights[..., None]).sum(1).to(torch.bfloat16)

    def many(self, rows: Rows) -> torch.Tensor:
        """Sort routes, both products, the activation between, and the sum over slots."""
        inter = self.w2.shape[2]
        flat = rows.ids.flatten()
        order = torch.argsort(flat, stable=True)
        token = order // rows.ids.shape[1]
        counts = torch.zeros(self.w13.shape[0], dtype=torch.int32, device=flat.device)
        counts = counts.scatter_add(0, flat.long(), torch.ones_like(flat))
        ends = counts.cumsum(0, dtype=torch.int32)
        both = torch.nn.functional.grouped_mm(rows.x[token], self.w13.transpose(1, 2), offs=ends)
        gate = torch.nn.functional.silu(both[:, inter:].clamp(max=LIMIT))
        inner = gate * both[:, :inter].clamp(-LIMIT, LIMIT)
        outer = torch.nn.functional.grouped_mm(inner, self.w2.transpose(1, 2), offs=ends)
        weighted = outer * rows.weights.flatten()[order, None]
        total = torch.zeros(rows.x.shape, dtype=torch.float32, device=flat.device)
        return total.index_add(0, token, weighted.float()).to(torch.bfloat16)


def _case(name: str, rows: int, geometry: Geometry, bar: Bar) -> BenchCase:
    hidden, inter, slots = geometry.hidden, geometry.inter, geometry.slots
    used = min(geometry.experts, rows * slots)
    batched = rows <= geometry.experts <= BATCHED
    per_expert = 3 * inter * hidden * (GROUP // 2 + 1) // GROUP

    def prepare(copies: int) -> Work:
        inputs = [draw(rows, geometry, seed) for seed in range(copies)]
        stock = [Stock.of(each.experts) for each in inputs]
        scratch = api.make_scratch(rows, geometry, inputs[0].rows.x.device)
        return Work(
            ours=lambda index: call(inputs[index], scratch),
            stock=lambda index: (stock[index].few if batched else stock[index].many)(
                inputs[index].rows
            ),
        )

    def gate(seed: int) -> float:
        inputs = draw(rows, geometry, seed)
        r, e = inputs.rows, inputs.experts
        exact = reference.moe_w4a8(
            r.x, r.ids, r.weights, e.w13, e.s13, e.w2, e.s2, limit=LIMIT, dtype=torch.float64
        )
        return float((call(inputs).double() - exact).norm() / exact.norm())

    return BenchCase(
        op="moe_w4a8",
        name=f"{name} rows={rows}",
        rows=rows,
        bytes_moved=used * per_expert + rows * hidden * 4 + rows * slots * 8,
        bytes_per_copy=geometry.experts * per_expert,
        prepare=prepare,
        stock_name="torch batched matmul, bf16" if batched else "torch grouped_mm, bf16",
        gate=gate,
        max_error=4e-3,
        flops=2 * rows * slots * 3 * inter * hidden,
        bar=bar,
    )
