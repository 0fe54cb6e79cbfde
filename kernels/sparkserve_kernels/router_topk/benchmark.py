"""What is timed of the router: decode, verify and prefill rows of the target, and the draft's."""

from __future__ import annotations

from functools import partial

import torch

from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.router_topk import reference
from sparkserve_kernels.router_topk.api import Router, RowFacts, router_topk

TARGET = (384, Router())
DRAFT = (128, Router(chosen=3))
Model = tuple[int, Router]


def cases() -> tuple[BenchCase, ...]:
    """Up to 32,768 rows: at 4,096 the bytes take less time than a launch."""
    fast, wide = Bar(below_us=12.0), Bar(read_fraction=0.6)
    return (
        _case("rows=6", 6, TARGET, fast),
        _case("live rows=96", 96, TARGET, fast),
        _case("draft rows=5", 5, DRAFT, fast),
        _case("rows=4096", 4096, TARGET, wide),
        _case("rows=32768", 32768, TARGET, Bar()),
    )


def _case(name: str, rows: int, model: Model, bar: Bar) -> BenchCase:
    experts, router = model
    live = name.startswith("live")
    moved = rows * (4 * experts + 8 * router.chosen) + 4 * experts
    return BenchCase(
        op="router_topk",
        name=name,
        rows=rows,
        bytes_moved=moved,
        bytes_per_copy=rows * 4 * experts,
        prepare=partial(_prepare, rows, model, live=live),
        stock_name="torch.compile",
        gate=partial(_gate, rows, model, live=live),
        max_error=1e-6,
        bar=bar,
    )


def draw(rows: int, model: Model, seed: int, *, live: bool) -> tuple[torch.Tensor, ...]:
    """Scores, bias and live lengths (all alive unless ``live``)."""
    experts, router = model
    generator = torch.Generator(device="cuda").manual_seed(seed)
    scores = torch.randn((rows, experts), generator=generator, device="cuda") * 2
    bias = torch.randn(experts, generator=generator, device="cuda") * 0.1
    lengths = torch.full((-(-rows // router.rows_per_request),), 6, device="cuda")
    if live:
        lengths.random_(1, 7, generator=generator)
    return scores, bias, lengths


def _facts(lengths: torch.Tensor, *, live: bool) -> RowFacts:
    return RowFacts(live_lengths=lengths) if live else RowFacts()


def _prepare(rows: int, model: Model, copies: int, *, live: bool) -> Work:
    inputs = [draw(rows, model, seed, live=live) for seed in range(copies)]
    router = model[1]
    stock = torch.compile(partial(_stock, router=router, live=live), dynamic=False)

    def ours(index: int) -> object:
        scores, bias, lengths = inputs[index]
        return router_topk(scores, bias, rows=_facts(lengths, live=live), router=router)

    def theirs(index: int) -> object:
        return stock(*inputs[index])

    return Work(ours, theirs)


def _stock(
    scores: torch.Tensor, bias: torch.Tensor, lengths: torch.Tensor, *, router: Router, live: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by torch's own softplus and topk, whose ties fall as they may."""
    a = torch.sqrt(torch.nn.functional.softplus(scores))
    ids = torch.topk(a + bias, router.chosen, dim=1).indices
    kept = a.gather(1, ids)
    weights = kept / kept.sum(dim=1, keepdim=True) * router.scale
    ids = ids.int()
    if live:
        source = reference.source_rows(scores, RowFacts(live_lengths=lengths), router)
        ids, weights = ids[source], weights[source]
    return ids, weights


def _gate(rows: int, model: Model, seed: int, *, live: bool) -> float:
    """Largest relative error of a weight, and of a rank: what was left may not be better."""
    scores, bias, lengths = draw(rows, model, seed, live=live)
    router, facts = model[1], _facts(lengths, live=live)
    got = router_topk(scores, bias, rows=facts, router=router)
    source = reference.source_rows(scores, facts, router)
    a = reference.activation(scores[source].double())
    b, ids = a + bias.double(), got.ids.long()
    ours, best = b.gather(1, ids), b.topk(router.chosen, dim=1).values
    kept = a.gather(1, ids)
    weights = kept / kept.sum(dim=1, keepdim=True) * router.scale
    wrong_rank = ((ours - best).abs() / best.abs().clamp(min=1.0)).max()
    wrong_weight = ((got.weights.double() - weights).abs() / weights).max()
    return float(torch.maximum(wrong_rank, wrong_weight))
