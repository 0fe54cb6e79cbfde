"""Sizes, rates and durations: how they are written for people and read from them.

Binary units are GiB = 2^30 bytes, decimal ones GB = 10^9; the two are never mixed in one
figure. This module must not import anything of sparkserve.
"""

from __future__ import annotations

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": TIB, "tib": TIB, "tb": 1000**4,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a size such as ``"1.5GiB"``, ``"512 MB"`` or ``"4096"``.

    text: a number and an optional unit; bare ``k m g t`` are binary.

    Returns:
        The size in bytes, rounded to the nearest byte.

    Raises:
        ValueError: not a number, or an unknown unit.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"not a size: {text!r}, expected something like 1.5GiB")
    return round(float(match.group(1)) * factor)


def format_bytes(size_bytes: float) -> str:
    """Write a size with a binary unit and at most one decimal, such as ``"47.2 GiB"``."""
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def format_duration(seconds: float) -> str:
    """Write a duration as people say it: ``0.8 s``, ``42 s``, ``3 min 05 s``, ``2 h 04 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
