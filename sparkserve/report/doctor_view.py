"""The doctor's findings: the cluster first, then node by node; what is alike is said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkserve.checks.cabling import Cable
from sparkserve.checks.registry import theme_of
from sparkserve.model.diagnosis import DoctorResult
from sparkserve.model.event import Event
from sparkserve.model.finding import Finding
from sparkserve.model.mend import FixResult
from sparkserve.planning.mends import mends_for
from sparkserve.report.console import Answer, Console
from sparkserve.report.finding_view import matters, summary_line
from sparkserve.report.launch_plain import PlainLaunch
from sparkserve.report.launch_view import Watching
from sparkserve.report.mend_view import fix_lines
from sparkserve.report.text import Line, Span, Style, line, one_line, pasted, wrapped

_CLUSTER = "cluster"
_UNNAMED = ("this-machine", "hosts")
"""Clusters that have no file, so no name that an option takes."""
_EVIDENCE_LINES = 1
"""What else was seen is in the JSON document."""
_MARK = 8
_STYLES: dict[str, Style] = {
    "PASS": "good", "WARN": "warn", "UNKNOWN": "warn", "SKIPPED": "dim", "INFO": "name",
}  # fmt: skip


class _Silent:
    """An Observer for output that is one document."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def event(self, event: Event) -> None:
        """Take one event."""


def observer_for(console: Console) -> Watching:
    """The view of a doctor at work: lines for people, nothing for programs."""
    return PlainLaunch(console) if console.mode == "human" else _Silent()


@dataclass(frozen=True)
class Shown:
    """What is to be shown, and on what screen."""

    result: DoctorResult
    cables: Sequence[Cable] = ()
    fix: FixResult | None = None
    width: int | None = None
    verbosity: int = 0
    told: str | None = None
    """Theme whose passes are shown, too: its figures were asked for."""


def doctor_answer(shown: Shown) -> Answer:
    """The result in all forms; quiet mode gets a line per finding that matters."""
    result = shown.result
    lines: list[Line] = []
    apart = False
    for section in _sections(result, [f for f in result.findings if _is_shown(f, shown)]):
        told = section.lines()
        # A node without news has one line; what has more stands apart.
        lines += [line()] if lines and (apart or len(told) > 1) else []
        lines += told
        apart = len(told) > 1
    blocks = [_cabling_lines(shown), _unread_lines(result), fix_lines(shown.fix, _named(result))]
    for block in [*blocks, [summary_line(result.findings), *_next_lines(shown)]]:
        lines += [line(), *block] if lines and block else block
    short = [f"{f.verdict} {f.node or _CLUSTER} {f.code}" for f in result.findings if matters(f)]
    return Answer(wrapped(lines, shown.width), doctor_data(shown), tuple(short))


def doctor_data(shown: Shown) -> dict[str, Any]:
    """The JSON document."""
    result = shown.result
    data = {
        "ok": result.exit_code == 0,
        "exit_code": result.exit_code,
        "strict": result.strict,
        "cluster": result.cluster.name if result.cluster else None,
        "profile": result.profile,
        "findings": [finding.model_dump(mode="json") for finding in result.findings],
        "unread": [one.model_dump(mode="json") for one in result.unread],
        "cabling": [cable.model_dump(mode="json") for cable in shown.cables],
    }
    return data | ({"fix": shown.fix.model_dump(mode="json")} if shown.fix else {})


@dataclass
class _Alike:
    """One finding, or several nodes' findings that differ in the node's name alone."""

    findings: list[Finding]

    @property
    def nodes(self) -> tuple[str | None, ...]:
        return tuple(finding.node for finding in self.findings)


@dataclass
class _Section:
    """What is told about one node, about several alike, or about the cluster."""

    title: str
    counts: str
    groups: list[_Alike] = field(default_factory=list)

    def lines(self) -> list[Line]:
        lines = [line(Span(self.title, "bold"), Span(f"  {self.counts}", "dim"))]
        theme = ""
        for group in self.groups:
            if (own := theme_of(group.findings[0].check_id)) != theme:
                theme = own
                lines.append(line("  ", Span(theme, "name")))
            lines += _group_lines(group)
        return lines


def _is_shown(finding: Finding, shown: Shown) -> bool:
    if shown.verbosity or matters(finding):
        return True
    return shown.told is not None and theme_of(finding.check_id) == shown.told


def _sections(result: DoctorResult, shown: Sequence[Finding]) -> list[_Section]:
    """The cluster, then findings of several nodes, then every node."""
    order = [node.name for node in result.cluster.nodes] if result.cluster else []
    order += [f.node for f in result.findings if f.node is not None]
    places = list(dict.fromkeys(order))
    groups = _alike(shown)
    sections: dict[tuple[str | None, ...], _Section] = {}
    for key in _titles(groups, places):
        title = ", ".join(place or _CLUSTER for place in key)
        sections[key] = _Section(title, _counts(result.findings, key))
    for group in groups:
        sections[group.nodes].groups.append(group)
    return list(sections.values())


def _titles(groups: Sequence[_Alike], places: Sequence[str]) -> list[tuple[str | None, ...]]:
    several = sorted({group.nodes for group in groups if len(group.nodes) > 1}, key=len)
    cluster = [(None,)] if any(group.nodes[0] is None for group in groups) else []
    return [*cluster, *reversed(several), *((place,) for place in places)]


def _alike(findings: Sequence[Finding]) -> list[_Alike]:
    """Findings by what they say; one check's in a row, in the order of the checks."""
    groups: dict[tuple[str, ...], _Alike] = {}
    for finding in findings:
        neutral = finding.model_copy(update={"evidence": ()})
        said = _without(neutral.node, neutral)
        groups.setdefault(said, _Alike([])).findings.append(finding)
    return list(groups.values())


def _without(node: str | None, finding: Finding) -> tuple[str, ...]:
    """What a finding says apart from the node's own name."""
    said = (finding.check_id, finding.code, finding.verdict, finding.observed, finding.expected,
            finding.why, finding.fix)  # fmt: skip
    if node is None:
        return ("cluster", *said)
    return tuple(text.replace(node, "\0") for text in said)


def _counts(findings: Sequence[Finding], nodes: Sequence[str | None]) -> str:
    if len(nodes) > 1:
        return ""
    own = [finding for finding in findings if finding.node == nodes[0]]
    counts = (
        ("failed", sum(f.blocks for f in own)),
        ("warned", sum(f.outcome == "fail" and f.severity == "warning" for f in own)),
        ("unknown", sum(f.outcome == "unknown" for f in own)),
        ("passed", sum(f.outcome == "pass" for f in own)),
    )
    return ", ".join(f"{count} {word}" for word, count in counts if count)


def _group_lines(group: _Alike) -> list[Line]:
    first = group.findings[0]
    observed = one_line(first.observed) or first.title
    expected = f", expected {one_line(first.expected)}" if first.expected else ""
    names = f"{first.code}, {first.check_id}" if matters(first) else first.check_id
    lines = [
        line(
            "    ",
            Span(f"{first.verdict:<{_MARK}}", _STYLES.get(first.verdict, "bad")),
            f"{observed}{expected}",
            Span(f"  ({names})", "dim"),
        )
    ]
    if not matters(first):
        return lines
    if first.why:
        lines.append(line("    ", Span(f"{'why':>{_MARK - 2}}  ", "dim"), one_line(first.why)))
    for fix in dict.fromkeys(finding.fix for finding in group.findings if finding.fix):
        lines += [
            pasted("    ", Span(f"{'fix':>{_MARK - 2}}  ", "dim"), part)
            for part in fix.splitlines()
        ]
    seen = list(dict.fromkeys(text for f in group.findings for text in f.evidence))
    more = len(seen) - _EVIDENCE_LINES
    shown = [*seen[:_EVIDENCE_LINES], *([f"and {more} more"] if more > 1 else seen[1:])]
    lines += [line("    ", Span(f"{'seen':>{_MARK - 2}}  ", "dim"), one_line(t)) for t in shown]
    return lines


def _unread_lines(result: DoctorResult) -> list[Line]:
    lines = [
        line(
            "  ",
            Span(f"{'UNREAD':<{_MARK}}", "warn"),
            f"{one_line(one.label)}: {one_line(one.reason)}",
        )
        for one in result.unread
    ]
    return [line(Span("not judged", "bold")), *lines] if lines else []


def _cabling_lines(shown: Shown) -> list[Line]:
    """The cables as a picture, where something is wrong with one, or everything is told."""
    bad = any(cable.advice for cable in shown.cables)
    if not shown.cables or not (bad or shown.verbosity):
        return []
    lines = [line(Span("cables", "bold"))]
    for cable in shown.cables:
        style: Style = "warn" if cable.advice else "good"
        lines.append(line("  ", Span(f"{cable.number}  ", style), cable.text))
        lines += [line("     ", Span(end.text, "dim")) for end in cable.ends]
        lines += [line("     ", Span(cable.advice, "warn"))] if cable.advice else []
    return lines


def _named(result: DoctorResult) -> str:
    """The cluster as an option of a command; empty where it goes without saying."""
    if result.cluster is None or result.cluster.name in _UNNAMED:
        return ""
    return f" --cluster {result.cluster.name}"


def _next_lines(shown: Shown) -> list[Line]:
    """What to do now, as commands."""
    result = shown.result
    if result.cluster is None:
        return []
    named = _named(result)
    failing = [finding for finding in result.findings if finding.outcome == "fail"]
    commands = []
    mends = list(dict.fromkeys(mend.name for mend, _ in mends_for(failing)))
    if shown.fix is not None and shown.fix.dry_run:
        mends = list(dict.fromkeys(change.mend for change in shown.fix.changes))
    if mends and (shown.fix is None or shown.fix.dry_run):
        trying = " --dry-run" if shown.fix is None else ""
        commands.append(f"sparkserve doctor{named} --fix {','.join(mends)}{trying}")
    if any(finding.blocks for finding in failing):
        commands.append(f"sparkserve doctor{named} --save bundle  # to show to somebody")
    return [pasted(Span("next  ", "dim"), command) for command in commands]
