"""Errors: what, where, expected against observed, then the command that helps."""

from __future__ import annotations

from typing import Any

from sparkserve.errors import CheckFailed, ExitCode, NodeError, SparkserveError
from sparkserve.report.text import Line, Span, line, paragraph, pasted


def error_lines(message: str, hint: str | None = None) -> list[Line]:
    """An error for people: the message, an empty line, the hint."""
    first, *rest = paragraph(message)
    lines = [line(Span("error: ", "bad"), *first), *rest]
    if hint:
        lines.append(line())
        for number, one in enumerate(paragraph(hint)):
            lines.append(pasted(Span("      " if number else "hint: ", "good"), *one))
    return lines


def lines_of(error: SparkserveError) -> list[Line]:
    """Any error for people; of failed checks every finding is told in full."""
    if not isinstance(error, CheckFailed) or not error.findings:
        return error_lines(error.message, error.hint)
    from sparkserve.report.finding_view import finding_block

    count = len(error.findings)
    # What the hint says in the end need not be said twice.
    findings = [
        one.model_copy(update={"fix": ""}) if one.fix == error.hint else one
        for one in error.findings
    ]
    what = f"{count} check{'s' if count > 1 else ''} failed; nothing was changed"
    first, *rest = error_lines(what, error.hint)
    return [first, *finding_block(findings, indent=2), *rest]


def error_data(error: SparkserveError) -> dict[str, Any]:
    """An error for programs."""
    data: dict[str, Any] = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": int(error.exit_code),
    }
    if isinstance(error, NodeError):
        data["node"] = error.node
    if isinstance(error, CheckFailed):
        data["findings"] = [finding.model_dump(mode="json") for finding in error.findings]
    return data


def interrupted_data() -> dict[str, Any]:
    """The same for Ctrl-C."""
    return {
        "kind": "Interrupted",
        "message": "interrupted",
        "hint": None,
        "exit_code": int(ExitCode.INTERRUPTED),
    }


def bug_data(error: BaseException, place: str) -> dict[str, Any]:
    """The same for an error that sparkserve does not know.

    place: where the traceback lies.
    """
    return {
        "kind": "InternalError",
        "message": f"{type(error).__name__}: {error}",
        "hint": f"report it together with {place}",
        "exit_code": int(ExitCode.INTERNAL),
    }
