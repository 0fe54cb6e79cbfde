"""The compiled forms of the routed experts."""

from __future__ import annotations

from typing import Any

from sparkserve_kernels.moe_w4a8 import kernel, kernel_hopper
from sparkserve_kernels.moe_w4a8.plan import PAIR_BLOCK, Geometry
from sparkserve_kernels.moe_w4a8.tiles import (
    PLAN_BLOCK,
    REDUCE_COLUMNS,
    TABLE,
    Shape,
    Tile,
    prologue_shape,
)
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

TARGET_MODEL = {
    "TP4": Geometry(experts=384, slots=6, hidden=5120, inter=576),
    "TP3": Geometry(experts=384, slots=6, hidden=5120, inter=768),
    "TP8": Geometry(experts=384, slots=6, hidden=5120, inter=288),
}
IDS = {"ids_ptr": "*i32", "order_ptr": "*i32", "tiles_ptr": "*i32"}
STRIDES = {"row_stride": "i32", "slot_stride": "i32"}
OPTIONS = {"enable_fp_fusion": False}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Planner, prologues, both products at each bucket and slice, and the sum."""
    buckets = [tile for _, tile in TABLE[target.family]]
    few = buckets[0]
    products = [
        form
        for name, geometry in TARGET_MODEL.items()
        for tile in (buckets if name == "TP4" else [few])
        for form in (_fc1(name, geometry, tile), _fc2(name, geometry, tile))
    ]
    return (
        *_planners(few),
        _prologue("bf16", few, target),
        _prologue("e4m3", few, target),
        *products,
        _reduce(),
    )


def _planners(tile: Tile) -> tuple[Shipped, Shipped]:
    common: dict[str, Any] = {"warps": 4, "stages": 3}
    signature = {**IDS, "routes": "i32", "experts": "i32", **STRIDES}
    constants = {"SLOTS": 6, "TILE": tile.routes}
    return (
        Shipped(
            "plan, pairs",
            kernel.plan_pairs_kernel,
            signature,
            {**constants, "BLOCK": PAIR_BLOCK},
            **common,
        ),
        Shipped(
            "plan, one program per expert",
            kernel.plan_experts_kernel,
            {**signature, "places": "i32"},
            {**constants, "BLOCK": PLAN_BLOCK},
            **common,
        ),
    )


def _prologue(kind: str, tile: Tile, target: Target) -> Shipped:
    planes = tile.core == "values"
    shape = prologue_shape(6 * 160)
    return Shipped(
        label=f"prologue {kind}",
        kernel=kernel.prologue_kernel,
        signature={
            "x_ptr": "*bf16" if kind == "bf16" else "*u8",
            "x_scales_ptr": "*u8",
            "q_ptr": "*bf16" if planes else "*u8",
            "q_scales_ptr": "*u8",
            **IDS,
            **dict.fromkeys(("rows", "x_stride", "x_scales_stride", "routes", "experts"), "i32"),
            **STRIDES,
            "planners": "i32",
        },
        constants={
            "HIDDEN": 5120,
            "SLOTS": 6,
            "TILE": tile.routes,
            "PLAN_BLOCK": PAIR_BLOCK,
            "BLOCK": shape.block,
            "QUANTISED": kind != "bf16",
            "PLANES": planes,
            "INTERPRETED": False,
        },
        warps=shape.warps,
        stages=3,
        aligned=("x_stride", "x_scales_stride"),
        options=OPTIONS,
    )


def _fc1(name: str, geometry: Geometry, tile: Tile) -> Shipped:
    values = tile.core == "values"
    inputs = {"x_ptr": "*bf16"} if values else {"q_ptr": "*u8", "q_scales_ptr": "*u8"}
    outputs = {"out_ptr": "*bf16"} if values else {"out_ptr": "*u8", "out_scales_ptr": "*u8"}
    return _product(
        f"{name} up+gate",
        kernel_hopper.fc1_values_kernel if values else kernel.fc1_scaled_kernel,
        {**inputs, **_routes(), **outputs, "places": "i32", "limit": "fp32"},
        {"K": geometry.hidden, "INTER": geometry.inter, "INTERPRETED": False},
        (geometry, tile, tile.fc1),
    )


def _fc2(name: str, geometry: Geometry, tile: Tile) -> Shipped:
    values = tile.core == "values"
    inputs = {"x_ptr": "*bf16"} if values else {"q_ptr": "*u8", "q_scales_ptr": "*u8"}
    return _product(
        f"{name} down",
        kernel_hopper.fc2_values_kernel if values else kernel.fc2_scaled_kernel,
        {
            **inputs,
            **_routes(),
            "weights_ptr": "*fp32",
            "out_ptr": "*bf16",
            "places": "i32",
            **STRIDES,
        },
        {"K": geometry.inter, "HIDDEN": geometry.hidden}
        | ({"INTERPRETED": False} if values else {}),
        (geometry, tile, tile.fc2),
    )


def _routes() -> dict[str, str]:
    return {"order_ptr": "*i32", "tiles_ptr": "*i32", "w_ptr": "*u8", "s_ptr": "*u8"}


def _product(
    name: str,
    function: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    where: tuple[Geometry, Tile, Shape],
) -> Shipped:
    geometry, tile, shape = where
    return Shipped(
        label=f"{name} {tile.routes}x{shape.columns}x{shape.depth}",
        kernel=function,
        signature=signature,
        constants={
            **constants,
            "SLOTS": geometry.slots,
            "TILE": tile.routes,
            "COLUMNS": shape.columns,
            "DEPTH": shape.depth,
        },
        warps=shape.warps,
        stages=shape.stages,
        multiplies=True,
        streams=True,
        options=OPTIONS,
    )


def _reduce() -> Shipped:
    return Shipped(
        label="sum over slots",
        kernel=kernel.reduce_kernel,
        signature={
            "routes_ptr": "*bf16",
            "ids_ptr": "*i32",
            "out_ptr": "*bf16",
            "experts": "i32",
            **STRIDES,
            "out_stride": "i32",
        },
        constants={"HIDDEN": 5120, "SLOTS": 6, "BLOCK": REDUCE_COLUMNS},
        warps=4,
        stages=3,
        aligned=("out_stride",),
        options=OPTIONS,
    )
