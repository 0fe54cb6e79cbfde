"""What an adapter says about itself, readable without the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkserve.model.base import Model

TargetKind = Literal["replace", "wrap", "register"]


@dataclass(frozen=True)
class Target:
    """One place in the engine that an adapter changes."""

    path: str
    """Dotted path of a class, function or method, such as ``sglang.srt.layers.engram.Engram``."""
    kind: TargetKind
    """``replace`` puts another object there, ``wrap`` calls it from around, ``register`` adds to
    a table that the target owns."""
    digests: Mapping[str, tuple[str, ...]]
    """Engine version -> accepted source digests of the target (``adapters.source``)."""


@dataclass(frozen=True)
class AdapterMeta:
    """One adapter; its folder's ``__init__`` holds it under the name ``META``."""

    name: str
    """Equal to the folder's name and to the profile key ``[adapters.<name>]``."""
    summary: str
    settings: type[Model]
    targets: tuple[Target, ...]
    after: tuple[str, ...] = ()
    """Adapters that go in before this one where both are wanted."""
    needs: tuple[str, ...] = ()
    """Adapters without which this one does nothing."""
    conflicts: tuple[str, ...] = ()
    """Adapters that cannot be together with this one."""
    world_sizes: tuple[int, ...] = ()
    """Numbers of ranks it is made for; empty = any."""
    provides: tuple[str, ...] = field(default=())
    """What it offers, such as ``engram.rows``; two adapters cannot offer the same."""
