"""Findings as lines: one for the verdict, then what was expected, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.model.finding import Finding
from sparkserve.report.text import Line, Span, Style, line, one_line, pasted

_STYLES: dict[str, Style] = {
    "FAIL": "bad", "WARN": "warn", "UNKNOWN": "warn", "INFO": "name", "PASS": "good",
}  # fmt: skip


def matters(finding: Finding) -> bool:
    """Whether a finding is shown without being asked for: all but passes and skips."""
    return finding.outcome in ("fail", "unknown")


def finding_lines(finding: Finding, *, indent: int = 0) -> list[Line]:
    """One finding, with its evidence where it is bad news."""
    head = _head(finding, indent)
    return [head, *_told(finding, indent)] if matters(finding) else [head]


def finding_block(findings: Sequence[Finding], *, indent: int = 0) -> list[Line]:
    """Several findings; what the same check says alike of several nodes stands once."""
    lines: list[Line] = []
    for i, finding in enumerate(findings):
        lines.append(_head(finding, indent))
        told = _told(finding, indent)
        if i + 1 == len(findings) or told != _told(findings[i + 1], indent):
            lines += told
    return lines


def _head(finding: Finding, indent: int) -> Line:
    observed = one_line(finding.observed) or finding.title
    # The code is what the documents list; where all is well there is nothing to look up.
    names = f"{finding.code}, {finding.check_id}" if matters(finding) else finding.check_id
    expected = f", expected {one_line(finding.expected)}" if finding.expected else ""
    return line(
        " " * indent,
        Span(f"{finding.verdict:<7}", _STYLES.get(finding.verdict, "")),
        f" {finding.node or 'cluster'}: {observed}{expected}",
        Span(f"  ({names})", "dim"),
    )


def _told(finding: Finding, indent: int) -> list[Line]:
    """Why it matters and what to do."""
    told = (
        (line, "why", finding.why),
        (pasted, "fix", finding.fix),
        *((line, "seen", evidence) for evidence in finding.evidence),
    )
    pad = " " * indent
    return [
        make(pad, Span(f"{label:>11}  ", "dim"), one_line(text))
        for make, label, text in told
        if text
    ]


def summary_line(findings: Sequence[Finding], *, indent: int = 0) -> Line:
    """How the checks came out, counted."""
    counts = (
        ("failed", sum(finding.blocks for finding in findings), "bad"),
        ("warned", sum(f.outcome == "fail" and not f.blocks for f in findings), "warn"),
        ("unknown", sum(finding.outcome == "unknown" for finding in findings), "warn"),
        ("passed", sum(finding.outcome == "pass" for finding in findings), "good"),
        ("skipped", sum(finding.outcome == "skipped" for finding in findings), "dim"),
    )
    parts: list[Span] = [Span(" " * indent + "checks: ")]
    for word, count, style in counts:
        if count:
            parts += [Span(", " if len(parts) > 1 else ""), Span(f"{count} {word}", style)]  # type: ignore[arg-type]
    return line(*parts) if len(parts) > 1 else line(" " * indent + "checks: none")
