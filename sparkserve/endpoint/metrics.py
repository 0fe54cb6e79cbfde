"""Prometheus' text format, as engines write it, to samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkserve.errors import EndpointError

_LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|Inf|NaN)")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Sample:
    """One value of one metric."""

    name: str
    value: float
    """May be infinite or NaN, as the format allows."""
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_metrics(text: str) -> list[Sample]:
    """Read all samples of a page.

    Raises:
        EndpointError: a line is neither a comment nor a sample.
    """
    samples = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if line and not line.startswith("#"):
            samples.append(_sample(line, number))
    return samples


def _sample(line: str, number: int) -> Sample:
    match = _LINE.fullmatch(line)
    labels = _labels(match["labels"] or "") if match else None
    if match is None or labels is None or not _NUMBER.fullmatch(match["value"]):
        raise EndpointError(f"metrics line {number} is no sample: {line[:120]}", status=200)
    return Sample(match["name"], float(match["value"]), labels)


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    place = 0
    while text[place:].strip():
        match = _LABEL.match(text, place)
        if match is None:
            return None
        labels[match[1]] = _ESCAPE.sub(_unescaped, match[2])
        place = match.end()
    return labels


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
