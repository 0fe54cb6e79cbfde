"""Scores are timed within index_topk, whose bar they decide."""

from __future__ import annotations

from sparkserve_kernels.bench_case import BenchCase


def cases() -> tuple[BenchCase, ...]:
    """None of its own."""
    return ()
