"""Findings as lines: one for the verdict, then what was expected, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.model.finding import Finding
from sparkserve.report.text import Line, Span, Style, line, one_line

_STYLES: dict[str, Style] = {
    "FAIL": "bad", "WARN": "warn", "UNKNOWN": "warn", "INFO": "name", "PASS": "good",
}  # fmt: skip


def matters(finding: Finding) -> bool:
    """Whether a finding is shown without being asked for: all but passes and skips."""
    return finding.outcome in ("fail", "unknown")


def finding_lines(finding: Finding, *, indent: int = 0) -> list[Line]:
    """One finding, with its evidence where it is bad news."""
    pad = " " * indent
    observed = one_line(finding.observed) or finding.title
    expected = f", expected {one_line(finding.expected)}" if finding.expected else ""
    head = line(
        pad,
        Span(f"{finding.verdict:<7}", _STYLES.get(finding.verdict, "")),
        f" {finding.node or 'cluster'}: {observed}{expected}",
        Span(f"  ({finding.check_id})", "dim"),
    )
    if not matters(finding):
        return [head]
    told = (
        ("why", finding.why),
        ("fix", finding.fix),
        *(("seen", evidence) for evidence in finding.evidence),
    )
    return [
        head,
        *(line(pad, Span(f"{label:>11}  ", "dim"), one_line(text)) for label, text in told if text),
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
