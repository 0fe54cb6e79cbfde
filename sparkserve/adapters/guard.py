"""May an adapter go into this engine? A verdict with its reason, cheap and without effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkserve.adapters.meta import AdapterMeta
from sparkserve.adapters.registry import parse_settings
from sparkserve.adapters.source import TargetMissing
from sparkserve.errors import ConfigError
from sparkserve.model.base import Model
from sparkserve.model.engine_spec import InstalledTarget

DigestOf = Callable[[str], str]
"""Dotted path -> source digest; raises TargetMissing."""


@dataclass(frozen=True)
class Engine:
    """The engine as the guard sees it."""

    version: str
    world_size: int
    digest_of: DigestOf


@dataclass(frozen=True)
class Verdict:
    """Whether the adapter may go in; ``reason`` is empty exactly when it may."""

    reason: str
    settings: Model | None = None
    targets: tuple[InstalledTarget, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the adapter may be installed."""
        return not self.reason


def judge(meta: AdapterMeta, settings: Mapping[str, Any], engine: Engine) -> Verdict:
    """Check ranks, settings, and that every target is the code the adapter was made for."""
    if meta.world_sizes and engine.world_size not in meta.world_sizes:
        made_for = ", ".join(str(size) for size in meta.world_sizes)
        return Verdict(f"made for {made_for} ranks, this run has {engine.world_size}")
    try:
        parsed = parse_settings(meta, settings)
    except ConfigError as error:
        return Verdict(error.message)
    targets = []
    for target in meta.targets:
        accepted = target.digests.get(engine.version)
        if accepted is None:
            known = ", ".join(sorted(target.digests))
            return Verdict(
                f"{target.path}: made for sglang {known}, this is sglang {engine.version}"
            )
        try:
            found = engine.digest_of(target.path)
        except TargetMissing as error:
            return Verdict(f"sglang {engine.version} lacks {error}")
        if found not in accepted:
            wanted = " or ".join(each[:12] for each in accepted)
            return Verdict(
                f"{target.path} of sglang {engine.version} has source digest {found[:12]}, "
                f"expected {wanted}"
            )
        targets.append(InstalledTarget(target=target.path, kind=target.kind, source_digest=found))
    return Verdict("", parsed, tuple(targets))
