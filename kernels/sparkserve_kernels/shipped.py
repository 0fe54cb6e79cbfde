"""What an operation ships: each compiled form of a kernel that its tile tables can launch.

Every operation that has kernels has a module ``shipped`` with ``shipped(target)``. It draws on the
same tile tables as the launch, so that what the compile gate proves is what runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkserve_kernels import registry
from sparkserve_kernels.target import Target


@dataclass(frozen=True)
class Shipped:
    """One compiled form of one kernel."""

    label: str
    """Says which tile it is, such as ``rows<=16 N=5120 K=576 16x64x128``."""
    kernel: Any
    """The function under ``triton.jit``."""
    signature: Mapping[str, str]
    """Triton type of every argument that is no constexpr, such as ``*fp8e4nv`` or ``i32``."""
    constants: Mapping[str, Any]
    """Value of every constexpr."""
    warps: int
    stages: int
    aligned: tuple[str, ...] = ()
    """Integer arguments that are multiples of 16 here (all pointers are 16-byte aligned)."""
    multiplies: bool = False
    """Multiplies MXFP8 operands: on sm_12x the block-scaled matrix instruction must be there."""
    streams: bool = False
    """Streams tiles through shared memory: 16-byte asynchronous loads must be there."""
    prefetches: bool = False
    """Prefetches to the L2: bulk prefetches must be there."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further compile options, such as ``enable_fp_fusion``."""


def shipped_by(op: str, target: Target) -> tuple[Shipped, ...]:
    """All compiled forms of an operation for a target; empty where it has no kernel of its own.

    Raises:
        registry.RegistryError: no such operation.
        ImportError: its module does not import.
    """
    registry.load(op)
    module = importlib.import_module(f"sparkserve_kernels.{op}.shipped")
    forms: tuple[Shipped, ...] = module.shipped(target)
    return forms
