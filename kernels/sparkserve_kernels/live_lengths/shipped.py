"""The compiled form of the live lengths."""

from __future__ import annotations

from sparkserve_kernels.live_lengths.kernel import live_lengths_kernel
from sparkserve_kernels.live_lengths.rules import DRAFTS, SLOTS
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """The one form, the same on every target."""
    return (
        Shipped(
            label=f"{SLOTS} requests of {DRAFTS} drafts",
            kernel=live_lengths_kernel,
            signature={
                "confidence": "*fp32",
                "lengths": "*i64",
                **{f"t{draft}": "fp32" for draft in range(5)},
                **dict.fromkeys(("requests", "row_stride", "at_least"), "i32"),
            },
            constants={"DRAFTS": DRAFTS, "BLOCK": SLOTS},
            warps=2,
            stages=3,
            options={"enable_fp_fusion": False},
        ),
    )
