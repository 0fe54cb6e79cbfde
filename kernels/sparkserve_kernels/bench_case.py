"""What a benchmark case is: the op on rotated inputs, its stock alternative, its gate and bar."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkserve_kernels import registry


@dataclass(frozen=True)
class Bar:
    """What an op must reach on an H200; None where nothing is asked of that figure."""

    read_fraction: float | None = None
    """Bytes that must move over time, as a part of the read bandwidth of the same run."""
    speedup: float | None = None
    """Time of the stock alternative over ours."""
    below_us: float | None = None


@dataclass(frozen=True)
class Work:
    """A case made ready on the GPU."""

    ours: Callable[[int], Any]
    """One call on the i-th copy of the inputs; safe to capture in a CUDA graph."""
    stock: Callable[[int], Any]
    """The stock alternative on the same copy."""


@dataclass(frozen=True)
class BenchCase:
    """One op at one shape."""

    op: str
    name: str
    """Unique within the op, such as ``wq_b rows=6``; it is the key of the baseline."""
    rows: int
    bytes_moved: int
    """What one call must read and write at least, each byte once."""
    bytes_per_copy: int
    """What one copy holds of the rotated inputs (usually the weights)."""
    prepare: Callable[[int], Work]
    """Makes that many copies on the GPU."""
    stock_name: str
    """The strongest stock alternative, such as ``cuBLAS bf16``."""
    gate: Callable[[int], float]
    """Error on fresh random inputs (argument: seed) against float64 torch, at this very shape."""
    max_error: float
    flops: int = 0
    copies: int | None = None
    """How many copies rotate; None for what passes the L2 by four, at most 512."""
    bar: Bar = field(default_factory=Bar)


def cases_of(op: str) -> tuple[BenchCase, ...]:
    """All cases of an operation; empty where it has nothing to time.

    Raises:
        registry.RegistryError: no such operation, or two of its cases have one name.
        ImportError: its benchmark module does not import.
    """
    registry.load(op)
    module = importlib.import_module(f"sparkserve_kernels.{op}.benchmark")
    found: tuple[BenchCase, ...] = module.cases()
    names = [case.name for case in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise registry.RegistryError(f"{op}: several cases named {', '.join(sorted(twice))}")
    return found
