"""What may stand at a dotted key of a profile, read from the models themselves."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from sparkserve.model.profile import Profile
from sparkserve.tomlfile import toml_key

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """One key of the profile's schema."""

    kind: Literal["table", "open", "value", "unknown"]
    """``table`` has fixed keys, ``open`` takes any key, ``value`` is a leaf."""
    annotation: Any = None
    in_open_table: bool = False
    """The key was chosen by the user, so it can also be taken away."""

    @property
    def takes_none(self) -> bool:
        """Whether the value can be unset."""
        return self.annotation is NoneType or NoneType in _alternatives(self.annotation)

    @property
    def is_text(self) -> bool:
        """Whether only text can stand here, so that it needs no quotes on a command line."""
        kinds = [kind for kind in _alternatives(self.annotation) if kind is not NoneType]
        return bool(kinds) and all(_is_text(kind) for kind in kinds)


def place(path: KeyPath) -> Place:
    """What the schema says about a key; kind ``unknown`` where it says nothing."""
    annotation: Any = Profile
    in_open = False
    for key in path:
        if _is_model(annotation):
            field = annotation.model_fields.get(key)
            if field is None:
                return Place("unknown")
            annotation, in_open = field.annotation, False
        elif get_origin(annotation) is dict:
            annotation, in_open = get_args(annotation)[1], True
        elif annotation is Any:
            in_open = True
        else:
            return Place("unknown")
    if _is_model(annotation):
        return Place("table", annotation, in_open)
    kind: Literal["open", "value"] = "open" if get_origin(annotation) is dict else "value"
    return Place(kind, annotation, in_open)


def all_keys() -> Iterator[KeyPath]:
    """Every fixed leaf key of a profile, in the models' order."""
    yield from _keys_of(Profile, ())


def _keys_of(model: type[BaseModel], prefix: KeyPath) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if _is_model(annotation):
            yield from _keys_of(annotation, (*prefix, name))
        else:
            yield (*prefix, name)


def nearest_key(path: KeyPath) -> str | None:
    """The existing key that an unknown one most likely meant, dotted; None if nothing is near."""
    every = [dotted(key) for key in all_keys()]
    parents = sorted({name.rpartition(".")[0] for name in every} - {""})
    wanted = dotted(path)
    near = difflib.get_close_matches(wanted, every + parents, n=1, cutoff=0.75)
    if near:
        return near[0]
    # A key in the wrong table: `port = 1` at the top means `serving.port`.
    tails: dict[str, str] = {}
    for name in every:
        tails.setdefault(name.rpartition(".")[2], name)
    tail = difflib.get_close_matches(path[-1], list(tails), n=1, cutoff=0.75)
    return tails[tail[0]] if tail else None


def dotted(path: Sequence[str | int]) -> str:
    """Write a key path as TOML would: ``fabric.nccl.NCCL_DEBUG``, odd parts quoted."""
    return toml_key(tuple(str(part) for part in path))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    return kind is str


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
