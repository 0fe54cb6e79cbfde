"""Experts of each token: sqrt-softplus scores, a selection bias and the best few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.router_topk.rules import (
    DEFAULT,
    NO_FACTS,
    Router,
    Routes,
    RowFacts,
    check,
)
from sparkserve_kernels.router_topk.tiles import Tile, tile_for
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["Router", "Routes", "RowFacts", "is_supported", "launch", "router_topk"]


def is_supported(scores: torch.Tensor) -> bool:
    """Whether the kernel runs where these scores lie."""
    return supports(scores)


def router_topk(
    scores: torch.Tensor,
    bias: torch.Tensor,
    bias_vl: torch.Tensor | None = None,
    *,
    rows: RowFacts = NO_FACTS,
    router: Router = DEFAULT,
) -> Routes:
    """Choose experts by a + bias with a = sqrt(log(1 + exp(score))), and weigh them by a.

    scores: [rows, experts] fp32, at most 512 experts; rows may lie apart.
    bias: [experts] fp32; it decides who is chosen and never enters a weight.
    bias_vl: [experts] fp32, used instead for rows whose token is the image token.

    Returns:
        Routes in descending order of a + bias; equal values by ascending id, and NaN (of a score or
        a bias) before everything. Weights are a / sum(a) * scale, the sum taken in a fixed tree, so
        that a row's bits depend on that row (a dead row's on its anchor) and on nothing else.

    Raises:
        KernelArgumentError: a wrong shape, dtype or number of experts.
        UnsupportedDevice: no kernel for where the scores lie.

    Notes:
        A dead row (position in its request >= its live length)
        takes its anchor's scores and token, hence its anchor's routes. A padding row has ids -1 and
        weights 0, dead or not. A chosen NaN makes all weights of its row NaN, as does a row whose
        chosen a are all 0 (scores below -87). No row gives empty routes.
    """
    import torch

    check(scores, bias, bias_vl, rows, router)
    shape = (scores.shape[0], router.chosen)
    routes = Routes(
        torch.empty(shape, dtype=torch.int32, device=scores.device),
        torch.empty(shape, dtype=torch.float32, device=scores.device),
    )
    if scores.shape[0]:
        tile = tile_for(target_of(scores).family, scores.shape[0])
        launch(scores, (bias, bias_vl), routes, tile=tile, rows=rows, router=router)
    return routes


def launch(
    scores: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor | None],
    routes: Routes,
    *,
    tile: Tile,
    rows: RowFacts = NO_FACTS,
    router: Router = DEFAULT,
) -> None:
    """Run the kernel in one tile, without checks."""
    from sparkserve_kernels.router_topk.kernel import router_topk_kernel

    count, experts = scores.shape
    bias, bias_vl = biases
    router_topk_kernel[(-(-count // tile.rows),)](
        scores,
        bias,
        bias if bias_vl is None else bias_vl,
        routes.ids if rows.tokens is None else rows.tokens,
        routes.ids if rows.rows_not_padding is None else rows.rows_not_padding,
        routes.ids if rows.live_lengths is None else rows.live_lengths,
        routes.ids,
        routes.weights,
        count,
        scores.stride(0),
        router.image_token,
        router.scale,
        EXPERTS=experts,
        CHOSEN=router.chosen,
        REQUEST=router.rows_per_request,
        HAS_IMAGE=bias_vl is not None,
        HAS_PADDING=rows.rows_not_padding is not None,
        HAS_LIVE=rows.live_lengths is not None,
        ROWS=tile.rows,
        INTERPRETED=target_of(scores).interpreted,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
