"""Launches of one chunk of rows: what runs, on which grid, over which scratch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparkserve_kernels.moe_w4a8 import kernel, kernel_hopper, kernel_plan
from sparkserve_kernels.moe_w4a8.plan import PAIR_BLOCK, Geometry, pairwise, tile_slots
from sparkserve_kernels.moe_w4a8.tiles import (
    HOPPER_FEW,
    PLAN_BLOCK,
    REDUCE_COLUMNS,
    SPLIT_ROWS,
    Shape,
    Tile,
    launch_options,
    prologue_shape,
)
from sparkserve_kernels.numerics.rules import GROUP


@dataclass(frozen=True)
class Experts:
    """The weights as they lie: natural layout, K contiguous, no second copy."""

    w13: torch.Tensor
    s13: torch.Tensor
    w2: torch.Tensor
    s2: torch.Tensor


@dataclass(frozen=True)
class Rows:
    """What a chunk's rows bring: activations (bf16, or e4m3 with scales) and their routes."""

    x: torch.Tensor
    x_scales: torch.Tensor | None
    ids: torch.Tensor
    weights: torch.Tensor

    def part(self, begin: int, end: int) -> Rows:
        """Rows begin..end as views."""
        scales = None if self.x_scales is None else self.x_scales[begin:end]
        return Rows(self.x[begin:end], scales, self.ids[begin:end], self.weights[begin:end])


@dataclass(frozen=True)
class Scratch:
    """Everything a call writes besides its result; one per geometry and stream, used again."""

    order: torch.Tensor
    """(routes,) int32: routes (token * slots + slot) sorted by expert."""
    table: torch.Tensor
    """Flat int32, room for the tile table [3, places]: expert, first place, routes."""
    x: torch.Tensor
    """Flat uint8: the quantised rows."""
    x_scales: torch.Tensor
    inner: torch.Tensor
    """Flat uint8: the quantised activations between the products, by place in the order."""
    inner_scales: torch.Tensor
    routed: torch.Tensor
    """Flat bf16: weight times down, by route."""
    partials: torch.Tensor
    """Flat fp32: sums of FC1 over parts of K, where a tile splits them over programs."""
    arrivals: torch.Tensor
    """Flat int32: how many programs have left theirs; all 0 between calls."""

    def clear(self) -> None:
        """Start anew after a call that did not come to its end.

        Its arrivals stay counted, and later sums would be taken before all their parts are there.
        """
        self.arrivals.zero_()


def allocate(rows: int, geometry: Geometry, device: torch.device) -> Scratch:
    """Scratch for so many rows, whatever their tile."""
    routes = rows * geometry.slots

    def flat(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device=device)

    blocks = split_blocks(rows, geometry)
    cells = 2 * HOPPER_FEW.fc1.columns * HOPPER_FEW.routes
    # bf16 values and fp32 scales are the largest of the forms that quantised rows have.
    return Scratch(
        order=flat(routes, torch.int32),
        table=flat(3 * (routes + geometry.experts), torch.int32),
        x=flat(2 * rows * geometry.hidden, torch.uint8),
        x_scales=flat(4 * rows * geometry.hidden // GROUP, torch.uint8),
        inner=flat(2 * routes * geometry.inter, torch.uint8),
        inner_scales=flat(4 * routes * geometry.inter // GROUP, torch.uint8),
        routed=flat(routes * geometry.hidden, torch.bfloat16),
        partials=flat(blocks * HOPPER_FEW.parts * cells, torch.float32),
        arrivals=torch.zeros(blocks, dtype=torch.int32, device=device),
    )


def split_blocks(rows: int, geometry: Geometry) -> int:
    """Programs of FC1, but for the parts, in the largest call that splits K."""
    columns = -(-geometry.inter // HOPPER_FEW.fc1.columns)
    return min(rows, SPLIT_ROWS) * geometry.slots * columns


@dataclass(frozen=True)
class Launch:
    """How a chunk runs."""

    geometry: Geometry
    tile: Tile
    limit: float
    """Of gate and up before the activation."""
    interpreted: bool

    @property
    def ahead(self) -> bool:
        """Whether a kernel is launched while the one before it still runs."""
        return self.tile.ahead and not self.interpreted


def plan_routes(
    ids: torch.Tensor, experts: int, tile: int, order: torch.Tensor, table: torch.Tensor
) -> None:
    """Sort routes by expert and cut them into tiles; see ``api.route_plan``."""
    routes = ids.numel()
    strides = (ids.stride(0), ids.stride(1))
    shape = {"slots": ids.shape[1], "tile": tile}
    if pairwise(routes):
        kernel_plan.plan_pairs_kernel[(-(-routes // PAIR_BLOCK),)](
            ids, order, table, routes, experts, *strides, **shape, BLOCK=PAIR_BLOCK, num_warps=4
        )
        return
    kernel_plan.plan_experts_kernel[(experts + 1,)](
        ids,
        order,
        table,
        routes,
        experts,
        tile_slots(routes, experts, tile),
        *strides,
        **shape,
        BLOCK=PLAN_BLOCK,
        num_warps=4,
    )


def run(rows: Rows, experts: Experts, out: torch.Tensor, scratch: Scratch, how: Launch) -> None:
    """All launches of one chunk.

    out: (rows, hidden), bf16, contiguous along the last axis.
    """
    quantised = prologue(rows, scratch, how)
    places = tile_slots(rows.ids.numel(), how.geometry.experts, how.tile.routes)
    fc1(quantised, experts, scratch, places, how)
    fc2(rows, experts, scratch, places, how)
    geometry = how.geometry
    kernel.reduce_kernel[(rows.ids.shape[0], -(-geometry.hidden // REDUCE_COLUMNS))](
        scratch.routed,
        rows.ids,
        out,
        geometry.experts,
        rows.ids.stride(0),
        rows.ids.stride(1),
        out.stride(0),
        HIDDEN=geometry.hidden,
        SLOTS=geometry.slots,
        BLOCK=REDUCE_COLUMNS,
        AHEAD=how.ahead,
        num_warps=4,
        enable_fp_fusion=False,
        **launch_options(how.tile),
    )


def prologue(rows: Rows, scratch: Scratch, how: Launch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort the routes and quantise the rows; gives the quantised rows and their scales."""
    geometry, routes, given = how.geometry, rows.ids.numel(), rows.x_scales
    planners = -(-routes // PAIR_BLOCK) if pairwise(routes) else 0
    if not planners:
        plan_routes(rows.ids, geometry.experts, how.tile.routes, scratch.order, scratch.table)
    groups = rows.x.shape[0] * geometry.hidden // GROUP
    shape = prologue_shape(groups)
    x = rows.x if given is None else rows.x.view(torch.uint8)
    q, scales = scratch.x, scratch.x_scales
    if how.tile.core == "codes":
        scales = scales.view(torch.float32)
    elif how.tile.core == "values":
        q = q.view(torch.bfloat16)
    quantisers = -(-groups // shape.block)
    if (
        given is not None
        and how.tile.core == "scaled"
        and x.is_contiguous()
        and given.is_contiguous()
    ):
        q, scales, quantisers = x, given, 0
    if planners + quantisers:
        kernel.prologue_kernel[(planners + quantisers,)](
            x,
            scales if given is None else given,
            q,
            scales,
            rows.ids,
            scratch.order,
            scratch.table,
            rows.x.shape[0],
            x.stride(0),
            0 if given is None else given.stride(0),
            routes,
            geometry.experts,
            rows.ids.stride(0),
            rows.ids.stride(1),
            planners,
            HIDDEN=geometry.hidden,
            slots=geometry.slots,
            tile=how.tile.routes,
            PLAN_BLOCK=PAIR_BLOCK,
            BLOCK=shape.block,
            QUANTISED=given is not None,
            CODES=how.tile.core == "codes",
            VALUES=how.tile.core == "values",
            INTERPRETED=how.interpreted,
            num_warps=shape.warps,
            enable_fp_fusion=False,
        )
    return q, scales


def fc1(
    quantised: tuple[torch.Tensor, torch.Tensor],
    experts: Experts,
    scratch: Scratch,
    places: int,
    how: Launch,
) -> None:
    """Up, gate, the activation between the products and its quantiser."""
    shape, inter = how.tile.fc1, how.geometry.inter
    grid = (-(-inter // shape.columns), places)
    common = _common(how, shape) | {"K": how.geometry.hidden, "INTER": inter}
    routes = (scratch.order, scratch.table, experts.w13, experts.s13)
    inner, scales = inner_of(scratch, how)
    if how.tile.core == "values":
        kernel_hopper.fc1_values_kernel[grid](
            quantised[0], *routes, inner, places, how.limit, **common
        )
        return
    if how.tile.core == "scaled":
        kernel.fc1_scaled_kernel[grid](
            *quantised, *routes, inner, scales, places, how.limit, **common
        )
        return
    sums = (scratch.partials, scratch.arrivals)
    parts = {"PARTS": how.tile.parts, "SPLIT": how.tile.split}
    grid = (grid[0] * (how.tile.parts if how.tile.split else 1), places)
    kernel_hopper.fc1_codes_kernel[grid](
        *quantised, *routes, inner, scales, *sums, places, how.limit, **common, **parts
    )


def inner_of(scratch: Scratch, how: Launch) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the rows between the products and their scales lie, as the core has them."""
    if how.tile.core == "values":
        return scratch.inner.view(torch.bfloat16), scratch.inner_scales
    if how.tile.core == "codes":
        return scratch.inner, scratch.inner_scales.view(torch.float32)
    return scratch.inner, scratch.inner_scales


def fc2(rows: Rows, experts: Experts, scratch: Scratch, places: int, how: Launch) -> None:
    """Down, times the weight of each route."""
    shape, hidden = how.tile.fc2, how.geometry.hidden
    grid = (-(-hidden // shape.columns), places)
    common = _common(how, shape) | {"K": how.geometry.inter, "HIDDEN": hidden}
    routes = (scratch.order, scratch.table, experts.w2, experts.s2, rows.weights, scratch.routed)
    strides = (places, rows.weights.stride(0), rows.weights.stride(1))
    inner, scales = inner_of(scratch, how)
    if how.tile.core == "values":
        kernel_hopper.fc2_values_kernel[grid](inner, *routes, *strides, **common)
        return
    codes = how.tile.core == "codes"
    function = kernel_hopper.fc2_codes_kernel if codes else kernel.fc2_scaled_kernel
    function[grid](inner, scales, *routes, *strides, **common)


def _common(how: Launch, shape: Shape) -> dict[str, Any]:
    ahead = {"AHEAD": how.ahead} if how.tile.core == "codes" else {}
    stages = {"STAGES": shape.stages} if how.tile.core != "scaled" else {}
    return {
        **ahead,
        **stages,
        **launch_options(how.tile),
        "INTERPRETED": how.interpreted,
        "slots": how.geometry.slots,
        "TILE": how.tile.routes,
        "COLUMNS": shape.columns,
        "DEPTH": shape.depth,
        "num_warps": shape.warps,
        "num_stages": shape.stages,
        # Scales are powers of two: a product with one is exact, fused into a sum or not.
        "enable_fp_fusion": True,
    }
