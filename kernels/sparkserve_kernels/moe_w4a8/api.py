"""Public functions of the routed experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkserve_kernels import target
from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_contiguous_rows,
    require_dtype,
    require_multiple,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.moe_w4a8.launch import (
    Experts,
    Launch,
    Rows,
    Scratch,
    allocate,
    plan_routes,
    run,
    split_blocks,
)
from sparkserve_kernels.moe_w4a8.plan import MAX_SLOTS, Geometry, capacity_for, chunks, tile_slots
from sparkserve_kernels.moe_w4a8.remap import remap_experts
from sparkserve_kernels.moe_w4a8.tiles import tile_for
from sparkserve_kernels.numerics.rules import GROUP

__all__ = [
    "Geometry",
    "RoutePlan",
    "Scratch",
    "is_supported",
    "make_scratch",
    "moe_w4a8",
    "remap_experts",
    "route_plan",
]


@dataclass(frozen=True)
class RoutePlan:
    """Routes grouped by expert and cut into tiles of one expert each."""

    order: torch.Tensor
    """(routes,) int32: route numbers token * slots + slot, by expert and then by number; routes
    whose id lies outside [0, experts) come last."""
    table: torch.Tensor
    """(3, places) int32: expert, first place in the order, and number of routes of each tile;
    places that no tile takes hold 0, 0, 0."""


def is_supported(x: torch.Tensor) -> bool:
    """Whether the kernels run on this tensor's device."""
    return target.supports(x)


def make_scratch(rows: int, geometry: Geometry, device: torch.device) -> Scratch:
    """Scratch that calls of up to so many rows share, as long as they run on one stream."""
    return allocate(capacity_for(rows), geometry, device)


def route_plan(topk_ids: torch.Tensor, experts: int, tile: int) -> RoutePlan:
    """Group routes by expert, so that each distinct expert's weights stream once per tile.

    topk_ids: (M, slots), int32, any strides; ids outside [0, experts) are skipped.
    tile: the most routes in a tile.

    Notes:
        One launch, no atomics; the order is stable. No routes give empty tensors.

    Raises:
        KernelArgumentError: shape, dtype, or a tile or expert count below 1.
    """
    require_shape("topk_ids", topk_ids, (None, None))
    require_dtype("topk_ids", topk_ids, torch.int32)
    if min(experts, tile) < 1:
        raise KernelArgumentError(f"experts = {experts}, tile = {tile}, expected at least 1 each")
    routes = topk_ids.numel()
    places = tile_slots(routes, experts, tile) if routes else 0
    order = torch.empty(routes, dtype=torch.int32, device=topk_ids.device)
    table = torch.empty((3, places), dtype=torch.int32, device=topk_ids.device)
    if routes:
        target.target_of(topk_ids)
        plan_routes(topk_ids, experts, tile, order, table)
    return RoutePlan(order, table)


def moe_w4a8(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w13: torch.Tensor,
    s13: torch.Tensor,
    w2: torch.Tensor,
    s2: torch.Tensor,
    *,
    limit: float = 10.0,
    x_scales: torch.Tensor | None = None,
    scratch: Scratch | None = None,
    rows_hint: int | None = None,
) -> torch.Tensor:
    """This rank's part of the routed experts: sum over slots of weight * down(swiglu(up, gate)).

    Args:
        x: (M, hidden), bf16, quantised inside; or float8_e4m3fn together with x_scales. hidden is
            a multiple of 128.
        topk_ids: (M, slots), int32, any strides; ids outside [0, E) contribute nothing.
        topk_weights: (M, slots), fp32, any strides; applied as they are.
        w13: (E, 2 * inter, hidden/2), uint8, contiguous: up in rows 0..inter-1, then gate. inter
            is a multiple of 32.
        s13: (E, 2 * inter, hidden/32), uint8, e8m0.
        w2: (E, hidden, inter/2), uint8, contiguous.
        s2: (E, hidden, inter/32), uint8, e8m0.
        limit: gate is cut above it, up on both sides.
        x_scales: (M, hidden/32), uint8, of x by the canonical rule.
        scratch: from ``make_scratch``, for calls of one stream; new memory if None.
        rows_hint: row count that chooses the tile, where the caller has only a shard of the rows.

    Returns:
        (M, hidden), bf16, new. No rows give no rows.

    Notes:
        Deterministic: every route has one producer and the slots are added in order in fp32.
        Within a row bucket a token's result depends on that token alone, bit for bit. Products
        are summed in fp32 in an order that the tile fixes. Rows beyond the largest capacity are
        done in chunks. The activation is quantised from fp32, not rounded to bf16 first.
        On Hopper weight scales of 2^-63 to 2^63 are exact, larger ones count as 2^63, and the
        scale 2^-127 counts as 0; activations likewise.

    Raises:
        KernelArgumentError: shape, dtype, stride, device, a limit not above 0, or a scratch that
            is too small.
        UnsupportedDevice: neither a GPU these kernels know nor the interpreter.

    Source: number formats in docs/format/numbers.md.
    """
    rows, experts = Rows(x, x_scales, topk_ids, topk_weights), Experts(w13, s13, w2, s2)
    geometry = check(rows, experts)
    if not limit > 0:
        raise KernelArgumentError(f"limit = {limit}, expected above 0")
    count = x.shape[0]
    out = torch.empty((count, geometry.hidden), dtype=torch.bfloat16, device=x.device)
    if count == 0:
        return out
    if rows_hint is not None and rows_hint < count:
        raise KernelArgumentError(f"rows_hint = {rows_hint}, expected at least {count} as in x")
    where = target.target_of(x)
    tile = tile_for(capacity_for(rows_hint or count), where.family)
    parts = chunks(count)
    if scratch is None:
        scratch = allocate(parts[0][1], geometry, x.device)
    check_scratch(scratch, x[: parts[0][1]], geometry)
    how = Launch(geometry, tile, limit, where.interpreted)
    for begin, end in parts:
        run(rows.part(begin, end), experts, out[begin:end], scratch, how)
    return out


def check(rows: Rows, experts: Experts) -> Geometry:
    """Refuse arguments that do not fit together; gives their geometry.

    Raises:
        KernelArgumentError: naming the tensor and both values.
    """
    require_shape("x", rows.x, (None, None))
    require_shape("topk_ids", rows.ids, (rows.x.shape[0], None))
    require_shape("w13", experts.w13, (None, None, None))
    require_shape("w2", experts.w2, (None, None, None))
    hidden = rows.x.shape[1]
    geometry = Geometry(
        experts=experts.w13.shape[0],
        slots=rows.ids.shape[1],
        hidden=hidden,
        inter=experts.w2.shape[2] * 2,
    )
    require_multiple("hidden", hidden, 4 * GROUP)
    require_multiple("inter", geometry.inter, GROUP)
    check_rows(rows, geometry)
    e, inter = geometry.experts, geometry.inter
    shapes = {
        "w13": (e, 2 * inter, hidden // 2),
        "s13": (e, 2 * inter, hidden // GROUP),
        "w2": (e, hidden, inter // 2),
        "s2": (e, hidden, inter // GROUP),
    }
    for name, shape in shapes.items():
        tensor: torch.Tensor = getattr(experts, name)
        require_shape(name, tensor, shape)
        require_dtype(name, tensor, torch.uint8)
        require_contiguous(name, tensor)
        require_same_device(x=rows.x, **{name: tensor})
    if min(geometry.experts, geometry.slots, geometry.inter, hidden) < 1:
        raise KernelArgumentError(f"{geometry}, expected at least 1 of each")
    if geometry.slots > MAX_SLOTS:
        raise KernelArgumentError(f"{geometry.slots} slots a token, expected at most {MAX_SLOTS}")
    return geometry


def check_rows(rows: Rows, geometry: Geometry) -> None:
    """Refuse activations and routes that do not fit together.

    Raises:
        KernelArgumentError: naming the tensor and both values.
    """
    count = rows.x.shape[0]
    require_contiguous_rows("x", rows.x)
    require_dtype("topk_ids", rows.ids, torch.int32)
    require_shape("topk_weights", rows.weights, (count, geometry.slots))
    require_dtype("topk_weights", rows.weights, torch.float32)
    require_same_device(x=rows.x, topk_ids=rows.ids, topk_weights=rows.weights)
    if rows.x_scales is None:
        require_dtype("x", rows.x, torch.bfloat16)
        return
    require_dtype("x", rows.x, torch.float8_e4m3fn)
    require_dtype("x_scales", rows.x_scales, torch.uint8)
    require_shape("x_scales", rows.x_scales, (count, geometry.hidden // GROUP))
    require_contiguous_rows("x_scales", rows.x_scales)
    require_same_device(x=rows.x, x_scales=rows.x_scales)


def check_scratch(scratch: Scratch, x: torch.Tensor, geometry: Geometry) -> None:
    """Refuse a scratch made for fewer rows than x has, another geometry or another device.

    Raises:
        KernelArgumentError: naming the part that does not fit.
    """
    rows = x.shape[0]
    routes = rows * geometry.slots
    wanted = {
        "order": routes,
        "table": 3 * (routes + geometry.experts),
        "x": 2 * rows * geometry.hidden,
        "inner": 2 * routes * geometry.inter,
        "routed": routes * geometry.hidden,
        "arrivals": split_blocks(rows, geometry),
    }
    for name, size in wanted.items():
        part: torch.Tensor = getattr(scratch, name)
        require_same_device(x=x, **{f"scratch.{name}": part})
        have = part.numel()
        if have < size:
            raise KernelArgumentError(f"scratch.{name}: {have} elements, expected at least {size}")
