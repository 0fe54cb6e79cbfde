"""Routing to test with: random scores, routes by one tile, and routes worked out in Python."""

from __future__ import annotations

import itertools
import math

import torch
from sparkserve_kernels.router_topk import api
from sparkserve_kernels.router_topk.api import Router, Routes
from sparkserve_kernels.router_topk.tiles import TILES

from tests.kernels.numeric import same_bits

DRAFT = Router(chosen=3)
TILES_OF_ALL = sorted({tile for pair in TILES.values() for tile in pair}, key=str)


def draw(rows, experts, generator, *, spread=2.0):
    device = generator.device
    scores = torch.randn(rows, experts, generator=generator, device=device) * spread
    bias = torch.randn(experts, generator=generator, device=device) * 0.1
    return scores, bias


def same_routes(one, other):
    return same_bits(one.ids, other.ids) and same_bits(one.weights, other.weights)


def by_hand(scores, bias, router):
    """Ids and weights in Python's own floats; only for rows whose ranks lie clearly apart."""
    ids, weights = [], []
    for row in scores.double().tolist():
        a = [math.sqrt(s) if s > 20 else math.sqrt(math.log1p(math.exp(s))) for s in row]
        b = [x + y for x, y in zip(a, bias.double().tolist(), strict=True)]
        order = sorted(range(len(b)), key=lambda i: (-b[i], i))
        gaps = [b[x] - b[y] for x, y in itertools.pairwise(order)][: router.chosen]
        assert min(gaps) > 1e-6, "draw other scores: these decide nothing"
        best = order[: router.chosen]
        ids.append(best)
        total = sum(a[i] for i in best)
        weights.append([a[i] / total * router.scale for i in best])
    return torch.tensor(ids), torch.tensor(weights, dtype=torch.float64)


def launched(scores, bias, tile, *, bias_vl=None, rows=api.NO_FACTS, router=api.DEFAULT):
    """The routes by one tile."""
    routes = Routes(
        torch.empty(len(scores), router.chosen, dtype=torch.int32, device=scores.device),
        torch.empty(len(scores), router.chosen, device=scores.device),
    )
    api.launch(scores, (bias, bias_vl), routes, tile=tile, rows=rows, router=router)
    return routes
