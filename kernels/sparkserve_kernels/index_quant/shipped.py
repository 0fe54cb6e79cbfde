"""The compiled forms of the index quantiser."""

from __future__ import annotations

from sparkserve_kernels.index_quant import kernel
from sparkserve_kernels.index_quant.tiles import FEW, MANY
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """All forms; the same on every target."""
    del target
    integers = ("rows", "heads", "row_stride", "head_stride", "page_stride", "page_slots")
    return tuple(
        Shipped(
            label=f"{'records' if paged else 'tensors'} {stages} stages {tile.block} groups",
            kernel=kernel.index_quant_kernel,
            signature={
                "x_ptr": "*bf16",
                "slots_ptr": "*i64" if paged else "*bf16",
                "payload_ptr": "*u8",
                "scales_ptr": "*u8",
                **dict.fromkeys(integers, "i32"),
                "total_slots": "i64",
            },
            constants={"PAGED": paged, "TWO_STAGES": stages == 2, "BLOCK": tile.block},
            warps=tile.warps,
            stages=3,
            aligned=("row_stride", "head_stride", "page_stride", "page_slots"),
            options={"enable_fp_fusion": False},
        )
        for paged, stages in ((False, 2), (True, 2), (True, 1))
        for tile in (FEW, MANY)
    )
