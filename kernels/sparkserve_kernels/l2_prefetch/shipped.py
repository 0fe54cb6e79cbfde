"""The compiled form of the prefetch."""

from __future__ import annotations

from sparkserve_kernels.l2_prefetch.kernel import prefetch_kernel
from sparkserve_kernels.l2_prefetch.tiles import THREADS, WARPS
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """One form for all sizes and targets."""
    del target
    return (
        Shipped(
            label=f"{THREADS} threads",
            kernel=prefetch_kernel,
            signature={"table": "*i64", "pieces": "i32"},
            constants={"THREADS": THREADS},
            warps=WARPS,
            stages=3,
            prefetches=True,
        ),
    )
