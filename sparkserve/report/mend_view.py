"""What ``doctor --fix`` would change, did change, or took back."""

from __future__ import annotations

from sparkserve.model.mend import Change, FixResult
from sparkserve.report.console import Answer
from sparkserve.report.text import Line, Span, line, one_line, pasted


def fix_answer(result: FixResult) -> Answer:
    """A fix or an undo that stands alone."""
    data = {"ok": result.exit_code == 0, "fix": result.model_dump(mode="json")}
    short = [f"{change.node} {change.mend}" for change in result.changes]
    return Answer(fix_lines(result), data, short)


def fix_lines(result: FixResult | None, named: str = "") -> list[Line]:
    """One block; empty where nobody asked for a mend.

    named: the cluster as an option of a command.
    """
    if result is None:
        return []
    if not result.changes:
        nothing = "no change is on record" if result.verb == "undo" else "no named mend helps here"
        return [line(Span(result.verb, "bold"), f"  {nothing}"), *_errors(result)]
    told = {"undo": "taken back", "fix": "mended"}[result.verb]
    done = sum(change.id in result.done for change in result.changes)
    if result.dry_run:
        told = "would be mended; nothing was changed"
    elif done < len(result.changes):
        told = f"{done} of {len(result.changes)} {told}"
    lines = [line(Span(result.verb, "bold"), f"  {told}")]
    for change in result.changes:
        lines += _change(change, result)
    if result.verb == "fix" and result.done:
        lines.append(pasted("  ", Span("take back  ", "dim"), f"sparkserve doctor{named} --undo"))
    return [*lines, *_errors(result)]


def _change(change: Change, result: FixResult) -> list[Line]:
    done = change.id in result.done
    mark = "plan" if result.dry_run else "done" if done else "not"
    style = Span(f"{mark:<6}", "good" if done else "warn")
    back = result.verb == "undo"
    lines = [
        line("  ", style, f"{change.node}: {change.title}", Span(f"  ({change.mend})", "dim")),
        pasted("        ", Span("runs  ", "dim"), change.undo_line if back else change.line),
    ]
    if not back:
        lines.append(pasted("        ", Span("undo  ", "dim"), change.undo_line))
    return lines


def _errors(result: FixResult) -> list[Line]:
    return [line("  ", Span("failed  ", "bad"), one_line(error)) for error in result.errors]
