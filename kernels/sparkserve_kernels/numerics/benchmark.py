"""Nothing to time: codecs run inside the kernels of others."""

from __future__ import annotations

from sparkserve_kernels.bench_case import BenchCase


def cases() -> tuple[BenchCase, ...]:
    """No case."""
    return ()
