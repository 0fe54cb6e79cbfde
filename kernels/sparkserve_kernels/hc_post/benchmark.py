"""What is timed of the gates."""

from __future__ import annotations

from sparkserve_kernels.bench_case import BenchCase


def cases() -> tuple[BenchCase, ...]:
    """None yet."""
    return ()
