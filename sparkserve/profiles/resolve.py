"""Merge a profile's file, its bases and the overrides into one validated Profile."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any

from pydantic import ValidationError

from sparkserve.errors import ConfigError
from sparkserve.model.profile import Profile
from sparkserve.profiles.layers import Assignment, Layer, assignments_of
from sparkserve.profiles.schema import KeyPath, dotted, nearest_key, place
from sparkserve.profiles.sources import ProfileSource, base_of, find
from sparkserve.tomlfile import read_toml

DEFAULT_ORIGIN = "default"


@dataclass(frozen=True)
class ResolvedProfile:
    """A profile and where each of its values came from."""

    profile: Profile
    origins: Mapping[str, str]
    """Dotted key of every leaf value, defaults included -> where it came from."""
    source: ProfileSource


@dataclass
class _Merged:
    """Values merged so far; a later assignment to the same key wins."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, assignment: Assignment) -> None:
        problem = _problem_of(assignment)
        if problem is not None:
            if problem not in self.problems:
                self.problems.append(problem)
            return
        path, value = assignment.path, assignment.value
        table = self._table(path[:-1])
        last = path[-1]
        if isinstance(value, dict) and not value:
            # An empty table names something (an adapter, say) and takes nothing away.
            if not table.setdefault(last, {}):
                self.origins[path] = assignment.origin
            return
        self.origins = {key: old for key, old in self.origins.items() if key[: len(path)] != path}
        if value is None and place(path).in_open_table:
            table.pop(last, None)
            if not table:
                self.origins[path[:-1]] = assignment.origin
            return
        table[last] = value
        self.origins[path] = assignment.origin

    def _table(self, path: KeyPath) -> dict[str, Any]:
        """The table at a path, made where there is none; whatever stood there gives way."""
        table = self.data
        for depth, key in enumerate(path, start=1):
            if not isinstance(table.get(key), dict):
                table[key] = {}
            self.origins.pop(path[:depth], None)
            table = table[key]
        return table


def load(name_or_path: str, *, layers: Sequence[Layer] = ()) -> ResolvedProfile:
    """Read a profile and put overrides on top.

    layers: strongest first: command line, environment, cluster file.

    Raises:
        ConfigError: no such profile, unreadable file, unknown keys, wrong types or values that
            contradict each other; every problem found is in the message.
    """
    source = find(name_or_path)
    merged = _Merged()
    for file, table in reversed(_chain(source)):
        _take(merged, assignments_of(table, file.origin))
    for layer in reversed(layers):
        _take(merged, layer.assignments)
    _check_name(merged, source)
    profile = _validate(merged, source)
    return ResolvedProfile(profile, _origins_of(profile, merged.origins), source)


def _take(merged: _Merged, assignments: Iterable[Assignment]) -> None:
    for assignment in assignments:
        merged.add(assignment)


def _chain(source: ProfileSource) -> list[tuple[ProfileSource, dict[str, Any]]]:
    """The file and the files it builds on, nearest first."""
    chain: list[tuple[ProfileSource, dict[str, Any]]] = []
    seen: list[str] = []
    while True:
        seen.append(str(source.path.resolve()))
        table = read_toml(source.path)
        extends = table.pop("extends", None)
        if chain:
            # The name belongs to the file that was asked for, not to what it builds on.
            table.pop("name", None)
        chain.append((source, table))
        if extends is None:
            return chain
        if not isinstance(extends, str):
            raise ConfigError(f"{source.path}: extends = {extends!r}, expected a profile's name")
        try:
            base = base_of(source, extends)
        except ConfigError as error:
            raise ConfigError(
                f"{source.path}: extends: {error.message}", hint=error.hint
            ) from error
        if str(base.path.resolve()) in seen:
            names = " -> ".join([file.name for file, _ in chain] + [base.name])
            raise ConfigError(f"{source.path}: profiles extend each other in a circle: {names}")
        source = base


def _problem_of(assignment: Assignment) -> str | None:
    """What is wrong with a key or a value that the models would not name as well."""
    path, origin = assignment.path, assignment.origin
    for length in range(1, len(path) + 1):
        if place(path[:length]).kind == "unknown":
            near = nearest_key(path)
            guess = f"; did you mean {near}?" if near else ""
            return f"{origin}: {dotted(path[:length])} is not a setting{guess}"
    key, value = dotted(path), assignment.value
    where = place(path)
    if where.kind in ("table", "open") and value is not None and not isinstance(value, dict):
        return f"{origin}: {key} = {_shown(value)}, expected a table"
    if value is None and not (where.takes_none or where.in_open_table):
        return f"{origin}: {key} cannot be unset"
    if any(isinstance(leaf, date | time) for leaf in _leaves(value)):
        return f"{origin}: {key} = {_shown(value)}, expected no date or time"
    if any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in _leaves(value)):
        return f"{origin}: {key} = {_shown(value)}, expected a finite number"
    return None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _check_name(merged: _Merged, source: ProfileSource) -> None:
    name = merged.data.setdefault("name", source.name)
    origin = merged.origins.setdefault(("name",), f"file name {source.path.name}")
    if name != source.name:
        merged.problems.append(
            f"{origin}: name = {_shown(name)}, expected the file's own name "
            f"{_shown(source.name)}; leave the line out or rename the file"
        )


def _validate(merged: _Merged, source: ProfileSource) -> Profile:
    try:
        # Strict JSON: arrays become tuples, but "9000" is no number and 1 is no text.
        profile = Profile.model_validate_json(json.dumps(merged.data), strict=True)
    except ValidationError as error:
        problems = merged.problems + [
            _sentence(dict(item), merged.origins, source) for item in error.errors()
        ]
        raise _refusal(source, problems) from error
    if merged.problems:
        raise _refusal(source, merged.problems)
    return profile


def _refusal(source: ProfileSource, problems: Sequence[str]) -> ConfigError:
    hint = _hint(source, problems[0])
    if len(problems) == 1:
        return ConfigError(problems[0], hint=hint)
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return ConfigError(f"profile {source.name} has {len(problems)} problems:{lines}", hint=hint)


def _hint(source: ProfileSource, problem: str) -> str:
    """The command that helps with a problem, by where the wrong value stands."""
    origin = problem.partition(":")[0]
    name = shlex.quote(str(source.path) if source.kind == "file" else source.name)
    if origin.startswith("SPARKSERVE_"):
        return f"unset {origin}"
    if origin.startswith("cluster "):
        return f"sparkserve cluster show {origin.removeprefix('cluster ')}"
    if origin in ("--set", "command line"):
        return f"sparkserve profile show {name} --origin"
    return f"sparkserve profile validate {name}"


def _sentence(
    item: Mapping[str, Any], origins: Mapping[KeyPath, str], source: ProfileSource
) -> str:
    path = tuple(str(part) for part in item["loc"])
    key = dotted(path)
    if item["type"] == "missing":
        return f"{source.origin}: {key} is missing"
    if item["type"] == "value_error":
        reason = str(item["ctx"]["error"])
        return f"{_origin_near(path, origins, source)}: {key + ': ' if key else ''}{reason}"
    expected = str(item["msg"]).removeprefix("Input should be ")
    return (
        f"{_origin_near(path, origins, source)}: {key} = {_shown(item['input'])}, "
        f"expected {expected}"
    )


def _origin_near(path: KeyPath, origins: Mapping[KeyPath, str], source: ProfileSource) -> str:
    """Origin of the key itself, or of the value it is a part of."""
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return source.origin


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _origins_of(profile: Profile, origins: Mapping[KeyPath, str]) -> dict[str, str]:
    found: dict[str, str] = {}

    def visit(value: Any, path: KeyPath) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                visit(inner, (*path, key))
            return
        near = (origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins)
        found[dotted(path)] = next(near, DEFAULT_ORIGIN)

    visit(profile.model_dump(mode="json"), ())
    return found
