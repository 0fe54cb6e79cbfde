"""Versions and settings that are known to fail together: a table, and a pure matcher.

The table is ``known_bad.toml`` beside this module; it says what each condition means.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from pydantic import Field

from sparkserve.model.base import Model
from sparkserve.model.finding import Severity


class When(Model):
    """Conditions of a row; None = none."""

    kernel: str | None = None
    driver: str | None = None
    nccl: str | None = None
    nic_firmware: str | None = None
    bios: str | None = None
    cmdline_lacks: str | None = None
    image: str | None = None
    engine: str | None = None
    model: str | None = None
    min_nodes: int | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)


class Row(Model):
    """One row of the table."""

    id: str
    state: Literal["bad", "reference"]
    code: str
    severity: Severity
    judged_by: str = ""
    """Check that measures this fault where it can; empty: the row itself is the judgement."""
    symptom: str
    cause: str
    fix: str
    source: str
    when: When


class Setup(Model):
    """What is known of one node and of what runs there; None = not known."""

    kernel: str | None = None
    cmdline: str | None = None
    driver: str | None = None
    nccl: str | None = None
    nic_firmware: str | None = None
    bios: str | None = None
    image: str | None = None
    engine: str | None = None
    model: str | None = None
    nodes: int | None = None
    environment: dict[str, str] | None = None
    settings: dict[str, str] = Field(default_factory=dict)
    packages: dict[str, str] | None = None


class Match(NamedTuple):
    """A row that holds, and what of the setup made it hold."""

    row: Row
    because: tuple[str, ...]


@cache
def table() -> tuple[Row, ...]:
    """All rows.

    Raises:
        ValueError: the file that belongs to this version is damaged.
    """
    text = resources.files("sparkserve.checks").joinpath("known_bad.toml").read_text("utf-8")
    rows: list[Any] = tomllib.loads(text)["row"]
    return tuple(Row.model_validate(row) for row in rows)


def matches(setup: Setup, rows: tuple[Row, ...] | None = None) -> tuple[Match, ...]:
    """Rows of which every condition holds; a condition on something unknown never holds."""
    found = []
    for row in table() if rows is None else rows:
        told = _told(row.when, setup)
        if told and all(one is not None for one in told):
            found.append(Match(row, tuple(one for one in told if one is not None)))
    return tuple(found)


_VERSIONS = ("kernel", "driver", "nccl", "nic_firmware", "bios")
_WORDS = ("image", "engine", "model")


def _told(when: When, setup: Setup) -> list[str | None]:
    """One entry per condition: what made it hold, or None where it does not."""
    told: list[str | None] = []
    for name in _VERSIONS:
        if rule := getattr(when, name):
            value = getattr(setup, name)
            told.append(f"{name} {value}" if value and in_range(value, rule) else None)
    for name in _WORDS:
        if rule := getattr(when, name):
            value = getattr(setup, name)
            told.append(f"{name} {value}" if value and re.fullmatch(rule, value) else None)
    if when.cmdline_lacks is not None:
        lacks = setup.cmdline is not None and when.cmdline_lacks not in setup.cmdline.split()
        told.append(f"no {when.cmdline_lacks} on the command line" if lacks else None)
    if when.min_nodes is not None:
        enough = setup.nodes is not None and setup.nodes >= when.min_nodes
        told.append(f"{setup.nodes} nodes" if enough else None)
    told += [_variable(setup, name, rule) for name, rule in when.environment.items()]
    for name, rule in when.settings.items():
        value = setup.settings.get(name)
        told.append(f"{name} = {value}" if value and re.fullmatch(rule, value) else None)
    for name, rule in when.packages.items():
        value = (setup.packages or {}).get(name)
        told.append(f"{name} {value}" if value and in_range(value, rule) else None)
    return told


def _variable(setup: Setup, name: str, rule: str) -> str | None:
    if setup.environment is None:
        return None
    value = setup.environment.get(name)
    if rule.startswith("absent"):
        wanted = rule.removeprefix("absent").strip()
        return None if value == wanted else f"{name}={value}" if value else f"no {name}"
    return f"{name}={value}" if value is not None and re.fullmatch(rule, value) else None


def in_range(version: str, rule: str) -> bool:
    """Whether a version lies in a range such as ``>=7.0, <7.1`` or ``==2.30.4 || ==2.30.5``.

    Versions are compared number by number as far as the rule's bound goes for ``==``, and padded
    with zeros for the others; what is no number, such as ``-nvidia``, is passed over. A text
    without a number lies in no range.
    """
    return any(
        all(_holds(version, part.strip()) for part in side.split(",")) for side in rule.split("||")
    )


def _holds(version: str, rule: str) -> bool:
    match = re.fullmatch(r"(==|>=|<=|<|>)\s*(\S+)", rule)
    have = numbers_of(version)
    if match is None or not have:
        return False
    bound = numbers_of(match[2])
    if match[1] == "==":
        return have[: len(bound)] == bound
    size = max(len(have), len(bound))
    one, other = (part + (0,) * (size - len(part)) for part in (have, bound))
    return {">=": one >= other, "<=": one <= other, "<": one < other, ">": one > other}[match[1]]


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers of a version in order: ``7.0.0-1019-nvidia`` is (7, 0, 0, 1019)."""
    return tuple(int(word) for word in re.findall(r"\d{1,9}", version)[:6])
