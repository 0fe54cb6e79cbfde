"""Which checks are meant, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import get_args

from sparkserve.checks.check import Check, Stage
from sparkserve.checks.registry import ALL, THEMES
from sparkserve.errors import ConfigError
from sparkserve.facts.probe import Probe

_ALWAYS = ("SSH.REACHABLE",)
"""A node that could not be asked must show, whatever was asked for."""
STAGES: tuple[str, ...] = get_args(Stage)


def choose(stage: str | None, only: Sequence[str]) -> tuple[Check, ...]:
    """The checks of a stage (None = all) that ``only`` names by theme, id or code (none = all).

    Raises:
        ConfigError: a name that nothing has, or nothing is left.
    """
    if stage is not None and stage not in STAGES:
        raise ConfigError(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
    names = [name for text in only for name in text.split(",") if name]
    wanted: dict[str, Check] = {}
    for name in names:
        wanted |= {check.id: check for check in _named(name)}
    checks = [
        check
        for check in ALL
        if (stage is None or stage in check.stages) and (not names or check.id in wanted)
    ]
    if not checks:
        what = f"{' or '.join(names)} of stage {stage}" if names else f"of stage {stage}"
        raise ConfigError(f"no check {what}", hint="sparkserve doctor --list-checks")
    return tuple(check for check in ALL if check in checks or check.id in _ALWAYS)


def catalogue(checks: Sequence[Check] = ALL) -> list[dict[str, object]]:
    """What there is to know of each check, as plain data."""
    return [
        {
            "id": check.id,
            "code": check.code,
            "also": list(check.also),
            "title": check.title,
            "theme": theme,
            "stages": list(check.stages),
            "severity": check.severity,
            "class": check.fault_class,
            "reads": reads(check),
            "text_only": check.text_only,
            "symptom": check.symptom,
            "why": check.why,
            "fix": check.fix,
        }
        for theme, own in THEMES.items()
        for check in own
        if check in checks
    ]


def reads(check: Check) -> list[str]:
    """Names of what a check needs to see."""
    return [need.id if isinstance(need, Probe) else need.__name__ for need in check.needs]


def _named(name: str) -> list[Check]:
    if name.lower() in THEMES:
        return list(THEMES[name.lower()])
    upper = name.upper()
    found = [c for c in ALL if upper in (c.id.upper(), c.code, *c.also)]
    if found:
        return found
    known = [*THEMES, *(c.id for c in ALL), *(code for c in ALL for code in (c.code, *c.also))]
    near = get_close_matches(upper, known, n=3) or get_close_matches(name.lower(), known, n=3)
    near_text = f"; near it: {', '.join(near)}" if near else f"; themes: {', '.join(THEMES)}"
    raise ConfigError(
        f"no theme, check or code {name!r}{near_text}", hint="sparkserve doctor --list-checks"
    )
