"""Forms of the selection kernel that choose blocks; the same for all targets."""

from __future__ import annotations

from sparkserve_kernels.index_topk.shipped import select_form
from sparkserve_kernels.index_topk.tiles import BLOCKS
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Selection of blocks from scores and from segments."""
    return (
        *(select_form(BLOCKS, group=8, listed=0, carry=carry) for carry in (False, True)),
        *(select_form(BLOCKS, group=1, listed=1, carry=carry) for carry in (False, True)),
    )
