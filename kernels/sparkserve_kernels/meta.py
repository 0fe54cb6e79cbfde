"""What an operation says about itself, readable without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpMeta:
    """One operation; its folder's ``__init__`` holds it under the name ``META``."""

    name: str
    """Equal to the folder's name."""
    summary: str
    entry_points: tuple[str, ...]
    """Public functions of the folder's ``api`` module."""
    capabilities: tuple[tuple[int, int], ...]
    """CUDA compute capabilities it was measured on, such as (12, 1)."""
    test: str
    """Its test file below the repository's root."""
