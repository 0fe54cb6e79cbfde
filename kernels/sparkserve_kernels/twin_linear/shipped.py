"""The compiled forms of linears by a twin."""

from __future__ import annotations

from typing import Any

from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target
from sparkserve_kernels.twin_linear import kernel
from sparkserve_kernels.twin_linear.tiles import ROW_BUCKETS, Tile, in_words, tile_for

LAYERS = {
    "wo_a": (2, 1024, 4096),
    "draft head": (1, 32320, 5120),
    "draft main_proj": (1, 1280, 15360),
}
"""(groups, N, K) of a TP4 rank."""
EPILOGUES = {"wo_a": (0, 2), "draft head": (1,), "draft main_proj": (0,)}
MOST_ROWS = {"wo_a": 192, "draft head": 128, "draft main_proj": 16}
_KERNELS = {"wide": kernel.wide_kernel, "grouped": kernel.grouped_kernel}
_OUT = ("*bf16", "*fp32", "*fp8e4nv")


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Every tile that a layer of the model takes, once, named by the first such layer."""
    forms: dict[tuple[Any, ...], Shipped] = {}
    for layer, shape in LAYERS.items():
        for rows in (bucket for bucket in ROW_BUCKETS if bucket <= MOST_ROWS[layer]):
            tile = tile_for(target.family, rows, shape)
            for epilogue in EPILOGUES[layer]:
                form = _form(f"{layer} rows<={rows}", tile, shape, epilogue)
                forms.setdefault((tile, *sorted(form.constants.items())), form)
    return tuple(forms.values())


def _form(label: str, tile: Tile, shape: tuple[int, int, int], epilogue: int) -> Shipped:
    split = tile.split > 1
    out = _OUT[epilogue]
    return Shipped(
        label=f"{label} {tile.rows}x{tile.columns}x{tile.depth} split {tile.split}"
        + (" mxfp8" if epilogue == 2 else ""),
        kernel=_KERNELS[tile.kind],
        signature={
            "x_ptr": "*bf16",
            "w_ptr": "*fp8e4nv",
            "exponents_ptr": "*u8",
            "out_ptr": out,
            "scales_ptr": "*u8" if epilogue == 2 else out,
            "partials_ptr": "*fp32" if split else out,
            "arrivals_ptr": "*i32" if split else out,
            **dict.fromkeys(
                ("rows", "columns", "K", "groups", "x_stride", "x_group_stride"), "i32"
            ),
        },
        constants={
            "BM": tile.rows,
            "BN": tile.columns,
            "BK": tile.depth,
            "SPLIT": tile.split,
            "STAGES": tile.stages,
            "BLOCK_ROWS": 1 if label.startswith("draft main") else 32,
            "TWIN": True,
            "WHOLE": shape[2] % tile.depth == 0,
            "WORDS": in_words(tile, shape[2]),
            "EPILOGUE": epilogue,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=tile.stages,
        aligned=("columns", "K", "x_stride", "x_group_stride"),
        streams=True,
        options={"enable_fp_fusion": True},
    )
