"""The compiled forms of the routed experts."""

from __future__ import annotations

from typing import Any

from sparkserve_kernels.moe_w4a8 import kernel, kernel_hopper, kernel_plan
from sparkserve_kernels.moe_w4a8.plan import PAIR_BLOCK, Geometry
from sparkserve_kernels.moe_w4a8.tiles import (
    PLAN_BLOCK,
    REDUCE_COLUMNS,
    TABLE,
    Shape,
    Tile,
    launch_options,
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
ROUTES = {
    "order_ptr": "*i32",
    "tiles_ptr": "*i32",
    "w_ptr": "*u8",
    "s_ptr": "*u8",
    "slots": "i32",
}
PROLOGUES = (960, 655_360)
"""Groups in 6 and in 4,096 rows."""
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
    prologues = [
        _prologue(kind, tile, groups)
        for tile in (few, buckets[-1])
        for kind in ("bf16", "e4m3")
        for groups in PROLOGUES
    ]
    sums = [_reduce(tile, slots) for tile in (few, buckets[-1]) for slots in (6, 3)]
    # Buckets that differ in one product share the other, and so on.
    forms = (*_planners(), *prologues, *products, *sums)
    return tuple({form.label: form for form in forms}.values())


def _planners() -> tuple[Shipped, Shipped]:
    common: dict[str, Any] = {"warps": 4, "stages": 3}
    numbers = ("routes", "experts", "slots", "tile")
    signature = {**IDS, **dict.fromkeys(numbers, "i32"), **STRIDES}
    return (
        Shipped(
            "plan, pairs",
            kernel_plan.plan_pairs_kernel,
            signature,
            {"BLOCK": PAIR_BLOCK},
            **common,
        ),
        Shipped(
            "plan, one program per expert",
            kernel_plan.plan_experts_kernel,
            {**signature, "places": "i32"},
            {"BLOCK": PLAN_BLOCK},
            **common,
        ),
    )


def _prologue(kind: str, tile: Tile, groups: int) -> Shipped:
    shape = prologue_shape(groups)
    return Shipped(
        label=f"prologue {kind} to {tile.core}, {shape.block} groups",
        kernel=kernel.prologue_kernel,
        signature={
            "x_ptr": "*bf16" if kind == "bf16" else "*u8",
            "x_scales_ptr": "*u8",
            "q_ptr": "*bf16" if tile.core == "values" else "*u8",
            "q_scales_ptr": "*fp32" if tile.core == "codes" else "*u8",
            **IDS,
            **dict.fromkeys(("rows", "x_stride", "x_scales_stride", "routes", "experts"), "i32"),
            **STRIDES,
            **dict.fromkeys(("planners", "slots", "tile"), "i32"),
        },
        constants={
            "HIDDEN": 5120,
            "PLAN_BLOCK": PAIR_BLOCK,
            "BLOCK": shape.block,
            "QUANTISED": kind != "bf16",
            "CODES": tile.core == "codes",
            "VALUES": tile.core == "values",
            "INTERPRETED": False,
        },
        warps=shape.warps,
        stages=3,
        aligned=("x_stride", "x_scales_stride"),
        options=OPTIONS,
    )


def _fc1(name: str, geometry: Geometry, tile: Tile) -> Shipped:
    function = {
        "scaled": kernel.fc1_scaled_kernel,
        "codes": kernel_hopper.fc1_codes_kernel,
        "values": kernel_hopper.fc1_values_kernel,
    }[tile.core]
    outputs = {
        name.replace("q_", "out_").replace("x_", "out_"): kind
        for name, kind in _inputs(tile).items()
    }
    if tile.core == "codes":
        outputs |= {"partials_ptr": "*fp32", "arrivals_ptr": "*i32"}
    return _product(
        f"{name} up+gate{' split' if tile.split else ''}",
        function,
        {**_inputs(tile), **ROUTES, **outputs, "places": "i32", "limit": "fp32"},
        {"K": geometry.hidden, "INTER": geometry.inter},
        (tile, tile.fc1),
    )


def _fc2(name: str, geometry: Geometry, tile: Tile) -> Shipped:
    function = {
        "scaled": kernel.fc2_scaled_kernel,
        "codes": kernel_hopper.fc2_codes_kernel,
        "values": kernel_hopper.fc2_values_kernel,
    }[tile.core]
    outputs = {"weights_ptr": "*fp32", "out_ptr": "*bf16", "places": "i32", **STRIDES}
    return _product(
        f"{name} down",
        function,
        {**_inputs(tile), **ROUTES, **outputs},
        {"K": geometry.inter, "HIDDEN": geometry.hidden},
        (tile, tile.fc2),
    )


def _inputs(tile: Tile) -> dict[str, str]:
    if tile.core == "values":
        return {"x_ptr": "*bf16"}
    return {"q_ptr": "*u8", "q_scales_ptr": "*fp32" if tile.core == "codes" else "*u8"}


def _product(
    name: str,
    function: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    where: tuple[Tile, Shape],
) -> Shipped:
    tile, shape = where
    own: dict[str, Any] = {} if tile.core == "scaled" else {"STAGES": shape.stages}
    if tile.core == "codes":
        own["AHEAD"] = tile.ahead
    if function is kernel_hopper.fc1_codes_kernel:
        own |= {"PARTS": tile.parts, "SPLIT": tile.split}
    return Shipped(
        label=f"{name} {tile.routes}x{shape.columns}x{shape.depth}",
        kernel=function,
        signature=signature,
        constants={
            **constants,
            **own,
            "INTERPRETED": False,
            "TILE": tile.routes,
            "COLUMNS": shape.columns,
            "DEPTH": shape.depth,
        },
        warps=shape.warps,
        stages=shape.stages,
        multiplies=True,
        streams=True,
        options={"enable_fp_fusion": True} | launch_options(tile),
    )


def _reduce(tile: Tile, slots: int) -> Shipped:
    return Shipped(
        label=f"sum over {slots} slots{' ahead' if tile.ahead else ''}",
        kernel=kernel.reduce_kernel,
        signature={
            "routes_ptr": "*bf16",
            "ids_ptr": "*i32",
            "out_ptr": "*bf16",
            "experts": "i32",
            **STRIDES,
            "out_stride": "i32",
        },
        constants={"HIDDEN": 5120, "SLOTS": slots, "BLOCK": REDUCE_COLUMNS, "AHEAD": tile.ahead},
        warps=4,
        stages=3,
        aligned=("out_stride",),
        options=OPTIONS | launch_options(tile),
    )
