"""Profiles: the list, one as TOML, one value by value with its origin, problems."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkserve.profiles import ResolvedProfile
from sparkserve.report.console import Answer
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, line, one_line, paragraph
from sparkserve.tomlfile import emit_toml, toml_key


@dataclass(frozen=True)
class ProfileEntry:
    """One profile of the list."""

    name: str
    kind: str
    path: str
    resolved: ResolvedProfile | None
    """None where it cannot be read."""
    problem: str | None = None
    note: str | None = None


def list_answer(entries: Sequence[ProfileEntry], *, width: int | None) -> Answer:
    """All profiles; quiet mode gets their names."""
    columns = (
        Column("PROFILE"),
        Column("NODES", right=True),
        Column("ENGINE"),
        Column("FROM"),
        Column("SUMMARY", elastic=True),
    )
    rows = [[Span(entry.name, "name"), *_entry_cells(entry)] for entry in entries]
    lines = table(columns, rows, width=width) if rows else [line("no profiles")]
    return Answer(
        lines,
        {"profiles": [_entry_data(entry) for entry in entries]},
        tuple(entry.name for entry in entries),
    )


def show_answer(resolved: ResolvedProfile) -> Answer:
    """The profile as a TOML file that could be loaded again."""
    profile = resolved.profile
    head = [
        line(Span(f"# profile {profile.name}, from {resolved.source.path}", "dim")),
        line(Span(f"# digest {profile.digest}", "dim")),
    ]
    # The name is the file's own, so it would only be wrong in a copy.
    body = emit_toml(profile.model_dump(mode="json", exclude_none=True, exclude={"name"}))
    lines = [*head, *(line(text) for text in body.rstrip("\n").split("\n"))]
    return Answer(lines, _profile_data(resolved), (profile.digest,))


def origin_answer(resolved: ResolvedProfile, *, width: int | None) -> Answer:
    """Every value and where it was set; what is not a default stands out."""
    columns = (Column("KEY"), Column("VALUE", elastic=True), Column("ORIGIN"))
    values = dict(_leaves(resolved.profile.model_dump(mode="json"), ()))
    rows = []
    for key, origin in resolved.origins.items():
        style = "dim" if origin == "default" else ""
        rows.append([Span(key), Span(_shown(values.get(key)), "name"), Span(origin, style)])  # type: ignore[arg-type]
    return Answer(table(columns, rows, width=width), _profile_data(resolved))


def valid_lines(resolved: ResolvedProfile) -> list[Line]:
    """One profile that is as it should be."""
    name = str(resolved.source.path)
    return [line(Span("valid   ", "good"), name)]


def invalid_lines(path: str, problems: str) -> list[Line]:
    """One profile that is not, with everything that is wrong with it."""
    return [line(Span("invalid ", "bad"), path), *paragraph(problems, indent=2)]


def _entry_cells(entry: ProfileEntry) -> list[Span]:
    if entry.resolved is None:
        told = f"not valid: sparkserve profile validate {entry.name}"
        return [Span(""), Span(""), Span(entry.kind), Span(told, "bad")]
    profile = entry.resolved.profile
    return [
        Span(str(profile.parallel.tp)),
        Span(profile.engine.kind),
        Span(entry.kind),
        Span(one_line(profile.summary)),
    ]


def _entry_data(entry: ProfileEntry) -> dict[str, Any]:
    profile = entry.resolved.profile if entry.resolved else None
    return {
        "name": entry.name,
        "kind": entry.kind,
        "path": entry.path,
        "nodes": profile.parallel.tp if profile else None,
        "engine": profile.engine.kind if profile else None,
        "summary": profile.summary if profile else None,
        "problem": entry.problem,
        "note": entry.note,
    }


def _profile_data(resolved: ResolvedProfile) -> dict[str, Any]:
    return {
        "name": resolved.profile.name,
        "path": str(resolved.source.path),
        "kind": resolved.source.kind,
        "digest": resolved.profile.digest,
        "profile": resolved.profile.model_dump(mode="json"),
        "origins": dict(resolved.origins),
    }


def _leaves(value: Any, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, key))]
    return [(toml_key(path), value)]


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
