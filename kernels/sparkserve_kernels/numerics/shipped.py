"""The number formats ship no kernel of their own: every other kernel carries them."""

from __future__ import annotations

from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Nothing on any target."""
    del target
    return ()
