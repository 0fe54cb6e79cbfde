"""The list of all checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkserve.report.console import Answer
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, line

_COLUMNS = (
    Column("CHECK"),
    Column("CODE"),
    Column("SEVERITY"),
    Column("WHAT", elastic=True),
)


def catalogue_answer(checks: Sequence[Mapping[str, Any]], *, width: int | None) -> Answer:
    """Every check under its theme; quiet mode gets the ids alone."""
    lines: list[Line] = []
    for theme in dict.fromkeys(str(check["theme"]) for check in checks):
        rows = [_row(check) for check in checks if check["theme"] == theme]
        lines += [line(Span(theme, "bold")), *table(_COLUMNS, rows, width=width, indent=2), line()]
    live = sum(not check["text_only"] for check in checks)
    lines.append(line(f"{len(checks)} checks, {live} of them read on nodes, the others in texts"))
    return Answer(lines, {"checks": list(checks)}, [str(check["id"]) for check in checks])


def _row(check: Mapping[str, Any]) -> list[Span]:
    return [
        Span(str(check["id"]), "name"),
        Span(str(check["code"])),
        Span(str(check["severity"])),
        Span(str(check["title"])),
    ]
