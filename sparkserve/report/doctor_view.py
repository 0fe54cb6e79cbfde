"""The doctor's findings for people and programs."""

from __future__ import annotations

from typing import Any

from sparkserve.model.diagnosis import DoctorResult
from sparkserve.report.console import Answer
from sparkserve.report.finding_view import finding_block, matters, summary_line
from sparkserve.report.text import Line, Span, line, wrapped


def doctor_answer(result: DoctorResult, *, width: int | None, verbosity: int = 0) -> Answer:
    """The result in all forms; quiet mode gets a line per fault."""
    shown = [f for f in result.findings if verbosity or matters(f)]
    lines: list[Line] = [*finding_block(shown), *_unread_lines(result)]
    lines += [line()] if lines else []
    lines.append(summary_line(result.findings))
    short = [f"{f.verdict} {f.node or 'cluster'} {f.code}" for f in result.findings if matters(f)]
    return Answer(wrapped(lines, width), doctor_data(result), tuple(short))


def doctor_data(result: DoctorResult) -> dict[str, Any]:
    """The JSON document."""
    return {
        "ok": result.exit_code == 0,
        "exit_code": result.exit_code,
        "strict": result.strict,
        "findings": [finding.model_dump(mode="json") for finding in result.findings],
        "unread": [one.model_dump(mode="json") for one in result.unread],
    }


def _unread_lines(result: DoctorResult) -> list[Line]:
    return [
        line(Span(f"{'UNREAD':<7}", "warn"), f" {one.label}: {one.reason}") for one in result.unread
    ]
