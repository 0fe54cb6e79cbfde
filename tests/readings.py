"""Readings of tests, short to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading


def ran(command: str, text: str, node: str | None = None, **more: Any) -> Reading:
    """What a command printed."""
    return Reading(command=command, text=text, node=node, **more)


def holds(path: str, text: str, node: str | None = None) -> Reading:
    """What a file holds."""
    return Reading(path=path, text=text, node=node)


def told(what: str, text: str, node: str | None = None, **more: Any) -> Reading:
    """Any other text."""
    return Reading(what=what, text=text, node=node, **more)


def findings(*readings: Reading, code: str | None = None) -> list[Finding]:
    """Findings that failed, of one code or of all."""
    found = diagnose(readings).findings
    return [f for f in found if f.outcome == "fail" and code in (None, f.code)]


def passes(*readings: Reading, check: str) -> list[Finding]:
    """Findings of one check that passed."""
    return [f for f in diagnose(readings).findings if f.outcome == "pass" and f.check_id == check]


def verdicts(found: Sequence[Finding]) -> list[tuple[str, str, str | None]]:
    """(code, verdict, node) of each."""
    return [(f.code, f.verdict, f.node) for f in found]
