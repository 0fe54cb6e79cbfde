"""The adapters there are: every folder beside this file is one, and its import must succeed.

Used by the control plane to judge a profile's ``[adapters]`` and by the node plane to find the
same metadata; it must not import the engine or a tensor library.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkserve.adapters.meta import AdapterMeta
from sparkserve.errors import ConfigError, SparkserveError
from sparkserve.model.base import Model
from sparkserve.model.engine_spec import AdapterSpec


def names() -> tuple[str, ...]:
    """Names of all adapters, sorted."""
    here = Path(__file__).parent
    return tuple(sorted(each.parent.name for each in here.glob("*/__init__.py")))


def load(name: str) -> AdapterMeta:
    """Metadata of one adapter.

    Raises:
        ConfigError: no such adapter; the message lists what exists and the nearest match.
        SparkserveError: the folder holds no META of its own name.
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"no adapter {name}{guess} (there are: {', '.join(known)})")
    meta = getattr(importlib.import_module(f"sparkserve.adapters.{name}"), "META", None)
    if not isinstance(meta, AdapterMeta) or meta.name != name:
        raise SparkserveError(f"adapters/{name}: META must be an AdapterMeta named {name}")
    return meta


def parse_settings(meta: AdapterMeta, settings: Mapping[str, Any]) -> Model:
    """Settings as the adapter's own model, defaults filled in.

    Raises:
        ConfigError: unknown key or bad value; the message names ``adapters.<name>.<key>``.
    """
    try:
        return meta.settings.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["adapters", meta.name, *(str(part) for part in first["loc"])])
        fields = ", ".join(meta.settings.model_fields) or "none"
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(first["loc"][0]), meta.settings.model_fields, n=1)
            wrong = f"no such setting{f'; did you mean {near[0]}?' if near else ''}"
        else:
            wrong = f"{first['msg']}, got {first['input']!r}"
        raise ConfigError(f"{key}: {wrong} (settings: {fields})") from error


def validate(
    adapters: Mapping[str, Mapping[str, Any]], *, world_size: int | None = None
) -> tuple[AdapterSpec, ...]:
    """Turn a profile's ``[adapters]`` into specs in the order in which they are installed.

    adapters: name -> settings as written.
    world_size: number of ranks; None leaves it unjudged.

    Raises:
        ConfigError: unknown adapter or setting, a conflict, a cycle, one that is needed and not
            there, or a number of ranks that an adapter is not made for.
    """
    metas = [load(name) for name in adapters]
    for meta in metas:
        if world_size is not None and meta.world_sizes and world_size not in meta.world_sizes:
            made_for = ", ".join(str(size) for size in meta.world_sizes)
            raise ConfigError(
                f"adapters.{meta.name} is made for {made_for} ranks, not {world_size}"
            )
    for meta in metas:
        missing = [name for name in meta.needs if name not in adapters]
        if missing:
            raise ConfigError(f"adapters.{meta.name} needs adapters.{missing[0]}")
    _refuse_conflicts(metas)
    return tuple(
        AdapterSpec(
            name=meta.name,
            settings=parse_settings(meta, adapters[meta.name]).model_dump(mode="json"),
        )
        for meta in in_order(metas)
    )


def in_order(metas: Sequence[AdapterMeta]) -> list[AdapterMeta]:
    """Sort by ``after``; adapters that do not care stand in alphabetical order.

    Raises:
        ConfigError: the ``after`` of some adapters form a cycle.
    """
    waiting = {meta.name: meta for meta in metas}
    ordered: list[AdapterMeta] = []
    while waiting:
        free = [
            name
            for name, meta in sorted(waiting.items())
            if not any(other in waiting for other in meta.after)
        ]
        if not free:
            raise ConfigError(f"adapters wait for each other: {', '.join(sorted(waiting))}")
        ordered.append(waiting.pop(free[0]))
    return ordered


def _refuse_conflicts(metas: Sequence[AdapterMeta]) -> None:
    for index, one in enumerate(metas):
        for other in metas[index + 1 :]:
            reason = _conflict(one, other)
            if reason:
                raise ConfigError(f"adapters {one.name} and {other.name} conflict: {reason}")


def _conflict(one: AdapterMeta, other: AdapterMeta) -> str | None:
    if other.name in one.conflicts or one.name in other.conflicts:
        return "they exclude each other"
    for offer in one.provides:
        if offer in other.provides:
            return f"both provide {offer}"
    # The engine lets the last replacement win with no more than a warning.
    replaced = {target.path for target in one.targets if target.kind == "replace"}
    for target in other.targets:
        if target.kind == "replace" and target.path in replaced:
            return f"both replace {target.path}"
    return None
