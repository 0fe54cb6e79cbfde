"""The compiled forms of the MXFP8 linear layer."""

from __future__ import annotations

from typing import Any

from sparkserve_kernels.mxfp8_linear import kernel, kernel_hopper
from sparkserve_kernels.mxfp8_linear.shapes import LAYERS
from sparkserve_kernels.mxfp8_linear.tiles import ROW_BUCKETS, Tile, tile_for
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

PREFILL_ROWS = 4096
_KERNELS = {
    "scaled": kernel.mxfp8_linear_kernel,
    "few": kernel_hopper.few_rows_kernel,
    "many": kernel_hopper.many_rows_kernel,
}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Every tile that a layer of the model takes, once, named by the first such layer."""
    forms: dict[tuple[Any, ...], Shipped] = {}
    for rows in (*ROW_BUCKETS[target.family], PREFILL_ROWS):
        for name, (columns, k) in LAYERS.items():
            tile = tile_for(target.family, rows, columns, k)
            for fused in (False, True)[: 1 + tile.fuse]:
                form = _form(f"{name} rows<={rows}", k, tile, fused=fused)
                forms.setdefault((tile, *sorted(form.constants.items())), form)
    return tuple(forms.values())


def _form(name: str, k: int, tile: Tile, *, fused: bool) -> Shipped:
    split = tile.split > 1
    constants: dict[str, Any] = {
        "BM": tile.rows,
        "BN": tile.columns,
        "BK": tile.depth,
        "SPLIT": tile.split,
        "STAGES": tile.stages,
        "WHOLE": k % tile.depth == 0,
        "HAS_BIAS": False,
        "INTERPRETED": False,
    }
    if tile.kind != "scaled":
        constants["SCALES"] = 1 if k % 128 == 0 else 2
    if tile.kind == "few":
        constants["FUSED"] = fused
    strides = ("q_stride", "q_scales_stride", "w_stride", "w_scales_stride", "out_stride")
    scale_strides = () if k // 32 % 16 else ("q_scales_stride", "w_scales_stride")
    return Shipped(
        label=f"{name} {tile.rows}x{tile.columns}x{tile.depth} split {tile.split}"
        + (" bf16" if fused else ""),
        kernel=_KERNELS[tile.kind],
        signature={
            "q_ptr": "*bf16" if fused else "*fp8e4nv",
            "q_scales_ptr": "*bf16" if fused else "*u8",
            "w_ptr": "*fp8e4nv",
            "w_scales_ptr": "*u8",
            "bias_ptr": "*bf16",
            "out_ptr": "*bf16",
            "partials_ptr": "*fp32" if split else "*bf16",
            "arrivals_ptr": "*i32" if split else "*bf16",
            **dict.fromkeys(("rows", "columns", "K", *strides), "i32"),
        },
        constants=constants,
        warps=tile.warps,
        stages=tile.stages,
        aligned=("columns", "K", "q_stride", "w_stride", "out_stride", *scale_strides),
        multiplies=True,
        streams=True,
        options={"enable_fp_fusion": True},
    )
