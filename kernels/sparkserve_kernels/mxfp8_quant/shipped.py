"""The compiled forms of the MXFP8 row quantiser."""

from __future__ import annotations

from sparkserve_kernels.mxfp8_quant import kernel
from sparkserve_kernels.mxfp8_quant.tiles import FEW, MANY
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """All forms; the same on every target."""
    return tuple(
        Shipped(
            label=f"{dtype} {'128x4' if swizzled else 'linear'} {tile.block} groups",
            kernel=kernel.mxfp8_quant_kernel,
            signature={
                "x_ptr": f"*{dtype}",
                "q_ptr": "*u8",
                "scales_ptr": "*u8",
                **dict.fromkeys(("rows", "groups", "out_rows", "out_groups", "x_stride"), "i32"),
            },
            constants={"SWIZZLED": swizzled, "BLOCK": tile.block, "INTERPRETED": False},
            warps=tile.warps,
            stages=3,
            aligned=("x_stride",),
            options={"enable_fp_fusion": False},
        )
        for dtype in ("bf16", "fp32")
        for swizzled in (False, True)
        for tile in (FEW, MANY)
    )
