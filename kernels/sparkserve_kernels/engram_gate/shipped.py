"""The compiled forms of the gate."""

from __future__ import annotations

from sparkserve_kernels.engram_gate.kernel import gate_kernel
from sparkserve_kernels.engram_gate.tiles import FEW_ROWS, TILES, Tile, halves
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

STREAMS = 4
HIDDEN = 5120
SIGNATURE = {
    "x": "*bf16",
    "kv": "*bf16",
    "q_weight": "*bf16",
    "k_weight": "*bf16",
    "tokens": "*i64",
    "out": "*bf16",
    "rows": "i32",
    "x_stride": "i32",
    "kv_stride": "i32",
    "out_stride": "i32",
    "image_token": "i32",
    "eps": "fp32",
}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Few and many rows, with and without image rows."""
    few, many = TILES[target.family]
    return tuple(
        _form(f"{name} {'images' if images else 'text'}", tile, images=images)
        for name, tile in ((f"rows<={FEW_ROWS}", few), (f"rows>{FEW_ROWS}", many))
        for images in (False, True)
    )


def _form(name: str, tile: Tile, *, images: bool) -> Shipped:
    head, tail = halves(HIDDEN)
    return Shipped(
        label=f"{name} H={HIDDEN} {tile.rows} a program",
        kernel=gate_kernel,
        signature=SIGNATURE,
        constants={
            "STREAMS": STREAMS,
            "HIDDEN": HIDDEN,
            "HEAD": head,
            "TAIL": tail,
            "ROWS": tile.rows,
            "IMAGES": images,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=3,
        aligned=("x_stride", "kv_stride", "out_stride"),
    )
