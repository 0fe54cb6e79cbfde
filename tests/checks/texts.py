"""Readings made in place, and what is said about them."""

from __future__ import annotations

import json
from typing import Any

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading


def what(words: str, text: Any, node: str | None = None, **more: Any) -> Reading:
    """A text that is neither a command's nor a file's; what is no text is written as JSON."""
    body = text if isinstance(text, str) else json.dumps(text)
    return Reading(what=words, text=body, node=node, **more)


def command(line: str, text: str, node: str | None = None, **more: Any) -> Reading:
    return Reading(command=line, text=text, node=node, **more)


def about(code: str, *readings: Reading) -> list[Finding]:
    """Findings with one code; every reading must have been understood as something."""
    result = diagnose(readings)
    assert [reading.source for reading in result.unread] == []
    return [finding for finding in result.findings if finding.code == code]


def failing(code: str, *readings: Reading) -> list[Finding]:
    return [finding for finding in about(code, *readings) if finding.outcome == "fail"]


def loud(*readings: Reading) -> list[Finding]:
    """Findings that a user is shown although nothing is wrong."""
    found = diagnose(readings).findings
    return [f for f in found if f.outcome != "pass" and f.severity != "info"]
