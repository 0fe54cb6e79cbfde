"""The compiled forms of the combination."""

from __future__ import annotations

from sparkserve_kernels.hc_combine_norm.kernel import combine_norm_kernel
from sparkserve_kernels.hc_combine_norm.tiles import WARPS, halves
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

HIDDEN = 5120


def shipped(target: Target) -> tuple[Shipped, ...]:
    """One form for each dtype of the norm's weight."""
    return tuple(_form(dtype, WARPS[target.family]) for dtype in ("bf16", "fp32"))


def _form(dtype: str, warps: int) -> Shipped:
    head, tail = halves(HIDDEN)
    return Shipped(
        label=f"{dtype} weight H={HIDDEN}",
        kernel=combine_norm_kernel,
        signature={
            "residual_ptr": "*bf16",
            "pre_ptr": "*fp32",
            "weight_ptr": f"*{dtype}",
            "out_ptr": "*bf16",
            "residual_stride": "i32",
            "out_stride": "i32",
            "eps": "fp32",
        },
        constants={"HIDDEN": HIDDEN, "HEAD": head, "TAIL": tail, "INTERPRETED": False},
        warps=warps,
        stages=3,
        aligned=("residual_stride", "out_stride"),
        options={"enable_fp_fusion": False},
    )
