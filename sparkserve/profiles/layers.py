"""Overrides: what the command line, the environment and the cluster file set, key by key.

Must not read the environment or files: the caller hands them in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkserve.errors import ConfigError
from sparkserve.profiles.schema import KeyPath, all_keys, place

_PREFIX = "SPARKSERVE_"
_UNSET = "none"
_CASE_KEPT: KeyPath = ("fabric", "nccl")


@dataclass(frozen=True)
class Assignment:
    """One value for one key."""

    path: KeyPath
    value: Any
    """Plain TOML data; None unsets an optional value or removes a key of an open table."""
    origin: str
    """Where it was written, as text for people: ``--set``, ``SPARKSERVE_SERVING__PORT``."""


@dataclass(frozen=True)
class Layer:
    """Assignments of one rank of precedence; of two for the same key the later one holds."""

    assignments: tuple[Assignment, ...] = ()


def layer_from_settings(texts: Sequence[str], *, option: str = "--set") -> Layer:
    """Read ``key=value`` texts of the command line.

    texts: dotted TOML keys; values are TOML, text needs no quotes, ``none`` unsets.

    Raises:
        ConfigError: no ``=``, no key, or a value that opens a bracket or quote and does not
            close it.
    """
    return Layer(tuple(_assignment_of(text, option) for text in texts))


def layer_from_environment(environment: Mapping[str, str]) -> Layer:
    """Take the profile's keys from an environment: ``SPARKSERVE_SERVING__PORT=9000``.

    Two underscores separate the levels; names are lower-cased except below ``fabric.nccl``.
    Variables without ``__`` belong to other parts of sparkserve and are left alone.

    Raises:
        ConfigError: a value is not TOML, or a variable spells a key with single underscores
            and would therefore be ignored.
    """
    assignments = []
    mistyped = {"_".join(path).upper(): path for path in all_keys() if len(path) > 1}
    for variable in sorted(environment):
        if not variable.startswith(_PREFIX):
            continue
        tail = variable.removeprefix(_PREFIX)
        if "__" in tail:
            path = _path_of_variable(tail)
            value = read_value(environment[variable], path, variable)
            assignments.append(Assignment(path, value, variable))
        elif tail in mistyped:
            right = _PREFIX + "__".join(mistyped[tail]).upper()
            raise ConfigError(
                f"{variable} sets nothing: two underscores separate the levels",
                hint=f"rename it to {right}",
            )
    return Layer(tuple(assignments))


def layer_from_cluster(name: str, overrides: Mapping[str, Any]) -> Layer:
    """Take the ``[overrides]`` table of a cluster file."""
    return layer_from_values(overrides, origin=f"cluster {name}")


def layer_from_values(values: Mapping[str, Any], *, origin: str) -> Layer:
    """Take nested plain data, such as a TOML table, or ``{"serving": {"port": 9000}}``."""
    return Layer(tuple(assignments_of(values, origin)))


def assignments_of(
    table: Mapping[str, Any], origin: str, prefix: KeyPath = ()
) -> Iterator[Assignment]:
    """Cut nested data into one assignment per leaf.

    Tables are followed as far as the schema has keys for them; unknown keys come out as they
    are, so that whoever validates can name them.
    """
    for key, value in table.items():
        path = (*prefix, key)
        kind = place(path).kind
        follow = kind == "table" or (kind == "open" and bool(value))
        if isinstance(value, Mapping) and follow:
            yield from assignments_of(value, origin, path)
        else:
            yield Assignment(path, value, origin)


def read_value(text: str, path: KeyPath, origin: str) -> Any:
    """Read one value as TOML, or as plain text where text is meant.

    path: decides whether quotes are needed at all: a key of type text takes ``0.5`` as text.

    Raises:
        ConfigError: an array, table or quoted text that TOML cannot read.
    """
    where = place(path)
    text = text.strip()
    if text == _UNSET and (where.takes_none or where.in_open_table):
        return None
    if where.is_text and text[:1] not in ("'", '"'):
        return text
    try:
        data = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ("[", "{", "'", '"'):
            raise ConfigError(
                f"{origin}: {'.'.join(path)} = {text} is not a TOML value: {error}",
                hint="quote the whole setting for your shell",
            ) from error
        return text
    return data["value"] if len(data) == 1 else text


def _assignment_of(text: str, option: str) -> Assignment:
    key, equals, value = text.partition("=")
    path = _path_of_key(key.strip())
    if not equals or not path:
        raise ConfigError(
            f"{option} {text}: expected key=value, such as serving.port=9000",
            hint="sparkserve profile show --origin",
        )
    return Assignment(path, read_value(value, path, option), option)


def _path_of_key(key: str) -> KeyPath:
    # TOML itself splits the key, so quoted parts work; a line break would start a second key.
    if "\n" in key or "\r" in key:
        return ()
    try:
        table = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    node: Any = table
    while isinstance(node, dict):
        if len(node) != 1:
            return ()
        name, node = next(iter(node.items()))
        path.append(name)
    return tuple(path)


def _path_of_variable(tail: str) -> KeyPath:
    parts = tail.split("__")
    lowered = tuple(part.lower() for part in parts)
    kept = len(_CASE_KEPT)
    if lowered[:kept] == _CASE_KEPT:
        return (*lowered[:kept], *parts[kept:])
    return lowered
