"""Forms of the selection kernel that choose blocks: index_topk ships them, see there."""

from __future__ import annotations

from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """None beside those of index_topk."""
    return ()
