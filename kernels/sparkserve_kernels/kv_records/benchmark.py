"""Nothing to time: no bar is set, and attention reads records in place."""

from __future__ import annotations

from sparkserve_kernels.bench_case import BenchCase


def cases() -> tuple[BenchCase, ...]:
    """No case."""
    return ()
