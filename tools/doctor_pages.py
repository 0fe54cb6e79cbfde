"""The pages that come from the doctor's own data: every check, and what symptoms mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkserve.checks.check import Check
from sparkserve.checks.registry import THEMES
from sparkserve.engine.patterns import Pattern
from sparkserve.engine.watcher import ALL_PATTERNS
from sparkserve.ops.doctor_choice import reads
from sparkserve.planning.mends import MENDS

TITLES = {
    "launch": "Before a launch",
    "ssh": "Reaching the nodes",
    "host": "Host and kernel",
    "parity": "Equal on all ranks",
    "power": "Power and clocks",
    "memory": "Memory",
    "fabric": "Fabric",
    "gids": "RDMA addresses",
    "nccl": "NCCL",
    "bandwidth": "Bandwidth",
    "containers": "Containers",
    "storage": "Storage",
    "packing": "Packed Engram rows",
    "ports": "Ports and processes",
    "profile": "Profile",
    "logs": "Logs",
    "progress": "Progress while starting and serving",
    "replies": "Replies of the endpoint",
    "evals": "Evaluations",
}
_CLASSES = {"reach": "3", "hardware": "4", "memory": "5"}


def checks_page() -> str:
    """Every check with why and fix."""
    total = sum(len(checks) for checks in THEMES.values())
    live = sum(not check.text_only for checks in THEMES.values() for check in checks)
    lines = [
        "# Checks",
        "",
        f"What `sparkserve doctor` judges: {total} checks, {live} of them by what it reads on the",
        "nodes. The others are judged by texts: a log, a profile, a reply, a record",
        "(`sparkserve doctor --replay`). A check of stage `launch` also runs before every launch,",
        "which goes on only where no error was found. [Troubleshooting](troubleshooting.md) has",
        "the same from the other side: what one sees, and what it means.",
        "",
        "A check that could not see what it needs says `unknown`, which is neither well nor bad.",
        "Limits that the source marks as proposals were chosen for sparkserve; nothing here was",
        "verified on a real Spark yet (see [hardware](hardware.md)).",
        "",
        *_contents(),
    ]
    for theme, checks in THEMES.items():
        if checks:
            lines += [f"## {TITLES[theme]}", "", f"`--only {theme}`", ""]
            for check in checks:
                lines += _check(check)
    return "\n".join([*lines, *_mends()]) + "\n"


def _contents() -> list[str]:
    rows = [
        f"- [{TITLES[theme]}](#{_anchor(TITLES[theme])}): "
        + ", ".join(f"[`{check.id}`](#{_anchor(check.id)})" for check in checks)
        for theme, checks in THEMES.items()
        if checks
    ]
    return [*rows, "- [Mends](#mends)", ""]


def _check(check: Check) -> list[str]:
    codes = ", ".join(f"`{code}`" for code in dict.fromkeys((check.code, *check.also)))
    exit_code = _CLASSES.get(check.fault_class, "1")
    ends = f", exit code {exit_code}" if check.severity == "error" else ""
    seen = ", ".join(f"`{name}`" for name in reads(check))
    lines = [f"### {check.id}", "", _flat(check.title), ""]
    lines += [f"- Code: {codes}", f"- Severity: {check.severity}{ends}"]
    lines += [f"- Stages: {', '.join(check.stages)}"]
    lines += [f"- Reads: {seen}"] if seen else []
    lines += [f"- Only from texts: {check.text_only}"] if check.text_only else []
    lines += [f"- Seen by the user: {_flat(check.symptom)}"] if check.symptom else []
    lines += [f"- Why: {_flat(check.why)}"] if check.why else []
    lines += [f"- Fix: {_flat(check.fix)}"] if check.fix else []
    return [*lines, ""]


def _mends() -> list[str]:
    lines = [
        "## Mends",
        "",
        "What `sparkserve doctor --fix NAME` may change. Each lasts until the next boot, is noted",
        "before it is made, and `--undo` puts the old value back. Everything else is only",
        "printed, as a command.",
        "",
        "| name | for | what |",
        "|---|---|---|",
    ]
    return [
        *lines,
        *(
            f"| `{mend.name}` | {', '.join(f'`{code}`' for code in mend.codes)} | {mend.title} |"
            for mend in MENDS
        ),
    ]


def troubleshooting_page() -> str:
    """Symptom, cause, fix: from the checks, and from the table of log lines."""
    lines = [
        "# Troubleshooting",
        "",
        "What one sees, what it means and what helps. `sparkserve doctor` looks for all of it;",
        "a text from elsewhere (a forum, another machine, yesterday's log) is judged by",
        "`sparkserve doctor --replay FILE --as 'engine log'`. How sparkserve's own commands end is",
        "explained in [the guide](guides/troubleshooting.md).",
        "",
    ]
    for theme, checks in THEMES.items():
        rows = [check for check in checks if check.symptom]
        if rows:
            lines += [f"## {TITLES[theme]}", "", "| what one sees | why | what helps | check |",
                      "|---|---|---|---|"]  # fmt: skip
            lines += [_symptom(check) for check in rows]
            lines.append("")
    return "\n".join([*lines, *_lines_of_logs(ALL_PATTERNS)]) + "\n"


def _symptom(check: Check) -> str:
    link = f"[`{check.code}`](checks.md#{_anchor(check.id)})"
    cells = [_cell(check.symptom), _cell(check.why), _cell(check.fix), link]
    return f"| {' | '.join(cells)} |"


def _lines_of_logs(patterns: Sequence[Pattern]) -> list[str]:
    lines = [
        "## Lines in logs",
        "",
        "What a line of an engine's, the kernel's or a service's log says. The earliest error over",
        "all ranks is the cause; what the others say after it is a consequence. One line alone is",
        "seldom a verdict.",
        "",
        "| line | meaning | what helps | codes |",
        "|---|---|---|---|",
    ]
    for pattern in patterns:
        codes = ", ".join(f"`{code}`" for code in pattern.codes)
        told = [_code(pattern.regex.pattern), _cell(_plain(pattern.meaning)), _cell(pattern.fix)]
        lines.append(f"| {' | '.join([*told, codes])} |")
    return lines


def _code(regex: str) -> str:
    """A regular expression within a table cell."""
    flat = " ".join(regex.split()).replace("|", "\\|")
    fence = "``" if "`" in flat else "`"
    return f"{fence}{flat}{fence}"


def _plain(meaning: str) -> str:
    """A meaning whose gaps are filled from the line: here they stay open."""
    return meaning.replace("{", "<").replace("}", ">")


def _cell(text: str) -> str:
    return _flat(text).replace("|", "\\|").replace("<", "&lt;")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept: Iterable[str] = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")
