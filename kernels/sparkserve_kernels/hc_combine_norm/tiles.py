"""The launch shape: one for all numbers of rows, so that no number of rows changes a bit."""

from __future__ import annotations

from sparkserve_kernels.target import Family

WARPS: dict[Family, int] = {"spark": 16, "hopper": 16}
"""Warps of the program that makes one row. No Spark was measured: its value is the H200's."""


def halves(hidden: int) -> tuple[int, int]:
    """A width as the largest power of two below it, and a power of two that covers the rest."""
    head = 1 << ((hidden - 1).bit_length() - 1)
    return head, 1 << (hidden - head - 1).bit_length()
