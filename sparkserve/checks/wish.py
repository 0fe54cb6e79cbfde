"""How checks of profiles look at the wish: one setting, where it was said, what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.wanted import Wanted, normal, setting, wanted_of
from sparkserve.units import GIB, KIB, MIB, TIB

_OFF = ("", "0", "false", "no", "off", "none", "null", "disabled", "never")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([kmgt])i?)?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


class Said(NamedTuple):
    """One setting with the place and the text that says it."""

    key: str
    value: Any
    node: str | None
    evidence: tuple[str, ...]
    wanted: Wanted
    """All that the same text says."""


def wishes(scene: Scene) -> Iterator[tuple[str | None, Wanted, tuple[str, ...]]]:
    """(place, wish, evidence) of every text that holds one, else of the scene's own profile."""
    told = scene.seen(Wanted)
    for place, wanted, reading in told:
        yield place, wanted, evidence([reading])
    if not told and scene.wish is not None and scene.fleet is not None:
        yield None, wanted_of(scene.wish, scene.fleet), ()


def wish(scene: Scene) -> Wanted:
    """Everything that is known of the wish."""
    return reduce(Wanted.merged, (wanted for _, wanted, _ in wishes(scene)), Wanted())


def said(scene: Scene, *names: str) -> list[Said]:
    """Every text's value of the first of these settings that it holds."""
    found = []
    for place, wanted, proof in wishes(scene):
        told = setting(wanted, *names)
        if told is not None:
            found.append(Said(told.key, told.value, place, proof, wanted))
    return found


def every(wanted: Wanted, *tails: str) -> list[tuple[str, Any]]:
    """All settings whose last part is one of these, as (key, value)."""
    return [
        (key, value)
        for key, value in (wanted.keys or {}).items()
        if normal(key) in tails or normal(key).rpartition(".")[2] in tails
    ]


def is_on(value: Any) -> bool:
    """Whether a setting is switched on, however people write that."""
    if isinstance(value, bool):
        return value
    return value is not None and str(value).strip().lower() not in _OFF


def is_written(value: Any) -> bool:
    """Whether a setting has a value at all."""
    return value is not None and str(value).strip().lower() not in ("", "none", "null", "~")


def size_bytes(value: Any) -> int | None:
    """A size as Docker reads it: every unit is binary, a bare number is bytes; None = no size."""
    if isinstance(value, bool) or value is None:
        return None
    found = _SIZE.fullmatch(str(value).strip())
    if found is None:
        return None
    return round(float(found[1]) * _FACTORS[(found[2] or "").lower()])


def is_v41(wanted: Wanted) -> bool:
    """Whether the model is DeepSeek-V4.1, by any name that the wish gives it."""
    keys = wanted.keys or {}
    names = [wanted.model_path, *(v for k, v in keys.items() if _names_model(k))]
    text = " ".join(str(name) for name in names if name).lower()
    own = any(normal(key).rpartition(".")[2].startswith("dsv41_") for key in keys)
    return own or re.search(r"deepseek[-_ ]?v4\.1|dsv4\.?1", text) is not None


def _names_model(key: str) -> bool:
    last = normal(key).rpartition(".")[2]
    return last in ("model", "repo", "served_name", "served_model_name", "model_repo", "model_id")
