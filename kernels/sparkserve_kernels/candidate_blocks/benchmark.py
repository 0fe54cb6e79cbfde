"""Blocks are timed beside the top keys of index_topk."""

from __future__ import annotations

from sparkserve_kernels.bench_case import BenchCase


def cases() -> tuple[BenchCase, ...]:
    """None of its own."""
    return ()
