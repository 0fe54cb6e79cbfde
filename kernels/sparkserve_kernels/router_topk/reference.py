"""The same routing in plain torch."""

from __future__ import annotations

import torch

from sparkserve_kernels.numerics.elementary import divide, sqrt_softplus
from sparkserve_kernels.router_topk.rules import DEFAULT, NO_FACTS, Router, Routes, RowFacts


def router_topk(
    scores: torch.Tensor,
    bias: torch.Tensor,
    bias_vl: torch.Tensor | None = None,
    *,
    rows: RowFacts = NO_FACTS,
    router: Router = DEFAULT,
) -> Routes:
    """As ``api.router_topk``, bit for bit on fp32; float64 scores are routed in float64."""
    source = source_rows(scores, rows, router)
    a = activation(scores[source])
    b = a + _bias_of_rows(bias, bias_vl, rows, router, source)
    # One order of all ranks: NaN first, then by value; a stable sort keeps the lower id first.
    unknown = torch.isnan(b)
    order = _descending(torch.where(unknown, torch.inf, b))
    order = order.gather(1, _descending(unknown.gather(1, order).int()))
    ids = order[:, : router.chosen]
    kept = a.gather(1, ids)
    total = _sum_in_tree(kept)[:, None]
    exact = scores.dtype == torch.float64
    weights = (kept / total if exact else divide(kept, total)) * router.scale
    ids = ids.to(torch.int32)
    if rows.rows_not_padding is not None:
        count = scores.shape[0]
        padding = torch.arange(count, device=scores.device) >= rows.rows_not_padding.reshape(())
        ids = torch.where(padding[:, None], -1, ids)
        weights = torch.where(padding[:, None], 0.0, weights)
    return Routes(ids.contiguous(), weights.contiguous())


def activation(scores: torch.Tensor) -> torch.Tensor:
    """sqrt(log(1 + exp(s))): in fp32 by the kernel's formula, in float64 by torch."""
    if scores.dtype != torch.float64:
        return sqrt_softplus(scores)
    softplus = torch.log1p(torch.exp(scores))
    return torch.sqrt(torch.where(scores > 20.0, scores, softplus))


def source_rows(scores: torch.Tensor, rows: RowFacts, router: Router) -> torch.Tensor:
    """[rows] int64: the row whose scores and token each row takes."""
    row = torch.arange(scores.shape[0], device=scores.device)
    if rows.live_lengths is None:
        return row
    request = row // router.rows_per_request
    dead = row % router.rows_per_request >= rows.live_lengths[request]
    return torch.where(dead, request * router.rows_per_request, row)


def remap_dead_rows(routes: Routes, live_lengths: torch.Tensor, router: Router = DEFAULT) -> Routes:
    """Routes of dead rows replaced by their anchor's after routing: what live rows spare."""
    source = source_rows(routes.weights, RowFacts(live_lengths=live_lengths), router)
    return Routes(routes.ids[source], routes.weights[source])


def _bias_of_rows(
    bias: torch.Tensor,
    bias_vl: torch.Tensor | None,
    rows: RowFacts,
    router: Router,
    source: torch.Tensor,
) -> torch.Tensor:
    if bias_vl is None or rows.tokens is None:
        return bias[None, :]
    image = rows.tokens[source] == router.image_token
    return torch.where(image[:, None], bias_vl[None, :], bias[None, :])


def _descending(values: torch.Tensor) -> torch.Tensor:
    return values.sort(dim=1, descending=True, stable=True).indices


def _sum_in_tree(kept: torch.Tensor) -> torch.Tensor:
    eight = torch.nn.functional.pad(kept, (0, 8 - kept.shape[1]))
    four = eight[:, :4] + eight[:, 4:]
    two = four[:, :2] + four[:, 2:]
    return two[:, 0] + two[:, 1]
