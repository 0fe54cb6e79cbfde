"""The compiled form of the mix."""

from __future__ import annotations

from sparkserve_kernels.hc_post.kernel import post_kernel
from sparkserve_kernels.hc_post.tiles import TILES
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

HIDDEN = 5120


def shipped(target: Target) -> tuple[Shipped, ...]:
    """The one form of a family."""
    tile = TILES[target.family]
    return (
        Shipped(
            label=f"H={HIDDEN} {tile.columns} columns a program",
            kernel=post_kernel,
            signature={
                "residual_ptr": "*bf16",
                "x_ptr": "*bf16",
                "post_ptr": "*fp32",
                "comb_ptr": "*fp32",
                "out_ptr": "*bf16",
                "residual_stride": "i32",
                "x_stride": "i32",
                "out_stride": "i32",
            },
            constants={"HIDDEN": HIDDEN, "COLUMNS": tile.columns, "INTERPRETED": False},
            warps=tile.warps,
            stages=3,
            aligned=("residual_stride", "x_stride", "out_stride"),
            options={"enable_fp_fusion": False},
        ),
    )
