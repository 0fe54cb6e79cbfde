"""The memory plan: a table of terms, a bar for every kind of rank, and what does not fit.

The bar is made of letters that stand before their terms in the table, so that it means the same
without colour and in a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkserve.model.finding import Finding
from sparkserve.planning.memory_formulas import enough
from sparkserve.planning.memory_learn import Difference, Learned
from sparkserve.planning.memory_types import MemoryPlan, MemoryTerm, RankMemory, Verdict
from sparkserve.report.console import Answer
from sparkserve.report.finding_view import finding_lines
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, cells, line, pasted, wrapped

_MARKS: Mapping[str, tuple[str, Style]] = {
    "weights": ("W", "name"), "draft": ("D", "name"), "nccl": ("N", "name"),
    "tables": ("E", "name"), "scales": ("S", "name"), "kv": ("K", "good"), "swa": ("k", "good"),
    "graphs": ("G", "warn"), "transient": ("T", "warn"), "cache": ("C", "warn"),
    "head": ("H", "warn"),
}  # fmt: skip
_SYSTEM, _FREE = "s", "."
_BAR_CELLS = 100
_LEAST_BAR = 20
_LEVELS: Mapping[str, tuple[str, Style]] = {
    "refuse": ("FAIL", "bad"), "warn": ("WARN", "warn"), "unknown": ("UNKNOWN", "warn"),
}  # fmt: skip
Group = tuple[str, RankMemory]


@dataclass(frozen=True)
class PlanView:
    """All that the view shows."""

    profile: str
    plan: MemoryPlan
    findings: Sequence[Finding]
    reasons: Sequence[str]
    learned: Learned | None
    differences: Sequence[Difference]


def plan_answer(view: PlanView, *, width: int | None) -> Answer:
    """The plan in all forms; quiet mode gets one word: fits, refused or unknown."""
    plan = view.plan
    groups = _groups(plan)
    lines = [*_head(view), line(), *_terms(plan, groups, width), line(), *_bars(groups, width)]
    lines += [line(), *_sums(plan), *_learned(view, width)]
    bad = [finding for finding in view.findings if finding.outcome == "fail"]
    for finding in bad:
        lines += [line(), *finding_lines(finding)]
    for verdict in plan.verdicts:
        lines += [line(), *_verdict(verdict)]
    word = {True: "fits", False: "does not fit", None: "not known whether it fits"}[plan.fits]
    style: Style = {True: "good", False: "bad", None: "warn"}[plan.fits]  # type: ignore[assignment]
    blocked = sum(finding.blocks for finding in bad)
    wrong = f"; {blocked} setting{'s' if blocked > 1 else ''} cannot work" if blocked else ""
    lines += [line(), line("memory: ", Span(word, style), wrong)]
    return Answer(wrapped(lines, width), _data(view), (word,))


def _head(view: PlanView) -> list[Line]:
    plan = view.plan
    count = len(plan.ranks)
    nodes = f"{count} node{'s' if count > 1 else ''}"
    lines = [
        line(Span(view.profile, "bold"), f" on {nodes}: {plan.wish.model.name}"),
        line(f"figures  {plan.wish.model.source}"),
    ]
    for source in dict.fromkeys(rank.source for rank in plan.ranks):
        told = sorted({f"{r.available_gib:.1f}" for r in plan.ranks if r.source == source})
        total = max(rank.total_gib for rank in plan.ranks if rank.source == source)
        lines.append(
            line(f"memory   {' to '.join(told[:: max(len(told) - 1, 1)])} GiB available of "
                 f"{total:.1f} GiB, {source}")
        )  # fmt: skip
    return [*lines, *(line(f"nodes    {reason}") for reason in view.reasons)]


def _groups(plan: MemoryPlan) -> list[Group]:
    """Ranks with equal figures as one, named after the first and the last."""
    groups: list[tuple[list[str], RankMemory]] = []
    for rank in plan.ranks:
        for names, other in groups:
            same = (rank.terms, rank.available_gib, rank.total_gib)
            if same == (other.terms, other.available_gib, other.total_gib):
                names.append(rank.node)
                break
        else:
            groups.append(([rank.node], rank))
    return [(_group_name(names, plan), rank) for names, rank in groups]


def _group_name(names: list[str], plan: MemoryPlan) -> str:
    """One node's name, ``every node``, ``workers``, or the first of several and their number."""
    if len(names) == 1:
        return names[0]
    nodes = [rank.node for rank in plan.ranks]
    if names == nodes:
        return "every node"
    return "workers" if names == nodes[1:] else f"{names[0]}+{len(names) - 1}"


def _terms(plan: MemoryPlan, groups: Sequence[Group], width: int | None) -> list[Line]:
    columns = (
        Column(""), Column("TERM"), *(Column(f"{name} GiB", right=True) for name, _ in groups),
        Column("PAID"), Column("HOW IT IS KNOWN", elastic=True),
    )  # fmt: skip
    every: dict[str, MemoryTerm] = {}
    for rank in plan.ranks:
        every |= {term.id: term for term in rank.terms if term.id not in every}
    rows = [[
        Span(_SYSTEM, "dim"), Span("in use before"),
        *(Span(f"{rank.total_gib - rank.available_gib:.2f}") for _, rank in groups),
        Span("all"), Span("the system and what else runs", "dim"),
    ]]  # fmt: skip
    for term in every.values():
        mark, style = _MARKS.get(term.id, ("?", ""))
        rows.append([
            Span(mark, style), Span(term.title), *(_amount(rank, term.id) for _, rank in groups),
            Span(term.payer), Span(term.note, "dim"),
        ])  # fmt: skip
    rows.append([
        Span(_FREE, "dim"), Span("left", "bold"), *(_left(rank) for _, rank in groups),
        Span("all"), Span("page cache; the guard stops below 1.5", "dim"),
    ])  # fmt: skip
    return table(columns, rows, width=width)


def _amount(rank: RankMemory, term_id: str) -> Span:
    term = next((one for one in rank.terms if one.id == term_id), None)
    if term is None:
        return Span("")
    return Span("unknown", "warn") if term.gib is None else Span(f"{term.gib:.2f}")


def _left(rank: RankMemory) -> Span:
    if rank.free_gib is None:
        return Span("unknown", "warn")
    return Span(f"{rank.free_gib:.2f}", "bad" if rank.free_gib < 0 else "bold")


def _bars(groups: Sequence[Group], width: int | None) -> list[Line]:
    longest = max(cells(name) for name, _ in groups)
    room = _BAR_CELLS if width is None else max(width - longest - 3, _LEAST_BAR)
    return [
        line(f"{name:<{longest}} ", *_bar(rank, min(room, _BAR_CELLS))) for name, rank in groups
    ]


def _bar(rank: RankMemory, room: int) -> list[Span]:
    """Segments in the order of the table; what is over the total is shown past a ``|``."""
    parts: list[tuple[float, str, Style]] = [(rank.total_gib - rank.available_gib, _SYSTEM, "dim")]
    parts += [(t.gib or 0.0, *_MARKS.get(t.id, ("?", ""))) for t in rank.terms]
    taken = sum(gib for gib, _, _ in parts)
    parts.append((max(rank.total_gib - taken, 0.0), _FREE, "dim"))
    scale = room / max(rank.total_gib, taken)
    limit = round(rank.total_gib * scale)
    spans, at, end = [], 0, 0.0
    for gib, mark, style in parts:
        end += gib
        stop = round(end * scale)
        for begin, upto in ((at, min(stop, limit)), (max(at, limit), stop)):
            if upto > begin:
                over = begin >= limit and taken > rank.total_gib
                spans.append(Span(mark * (upto - begin), "bad" if over else style))
        if at < limit <= stop:
            spans.insert(len(spans) - (1 if stop > limit else 0), Span("|"))
        at = max(stop, at)
    return spans


def _sums(plan: MemoryPlan) -> list[Line]:
    """Budget, pool and need in one line each."""
    lines = []
    known = [rank for rank in plan.ranks if rank.budget_gib is not None]
    note = f" ({plan.fraction_note})" if plan.fraction_note else ""
    if known:
        tight = min(known, key=lambda rank: rank.budget_gib or 0.0)
        lines.append(line(
            f"budget   {tight.budget_gib or 0:.2f} GiB for the pools on {tight.node}, at memory "
            f"fraction {plan.fraction:g}{note}"
        ))  # fmt: skip
    if plan.pool_tokens is not None:
        lines.append(line(f"KV pool  {plan.pool_tokens:,} tokens, {plan.pool_note}"))
    if plan.need_gib is not None:
        lines.append(
            line(f"need     {enough(plan.need_gib)} GiB available on every node at the start")
        )
    return lines


def _learned(view: PlanView, width: int | None) -> list[Line]:
    if view.learned is None:
        return []
    columns = (
        Column("FIGURE"), Column("PLANNED", right=True), Column("LEARNED", right=True), Column(""),
    )  # fmt: skip
    rows = [
        [Span(d.title), Span(_figure(d.planned, d.unit)), Span(_figure(d.learned, d.unit), "bold"),
         Span(d.unit)]
        for d in view.differences
    ]  # fmt: skip
    head = line(f"learned  from {view.learned.run}; the plan above uses these figures")
    return [line(), head, *table(columns, rows, width=width, indent=2)]


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if unit == "tokens" else f"{value:,.2f}"


def _verdict(verdict: Verdict) -> list[Line]:
    word, style = _LEVELS[verdict.level]
    where = f"{verdict.node}: " if verdict.node else ""
    lines = [
        line(Span(f"{word:<7}", style), f" {where}{verdict.term}: {verdict.observed}"),
        line(Span("   expected  ", "dim"), f"{verdict.expected}  ({verdict.rule})"),
    ]
    if verdict.mend:
        lines.append(pasted(Span("        fix  ", "dim"), f"sparkserve launch {verdict.mend}"))
    return lines


def _data(view: PlanView) -> dict[str, object]:
    plan = view.plan
    return {
        "profile": view.profile,
        "fits": plan.fits,
        "plan": plan.model_dump(mode="json"),
        "mends": [verdict.mend for verdict in plan.verdicts if verdict.mend],
        "findings": [finding.model_dump(mode="json") for finding in view.findings],
        "reasons": list(view.reasons),
        "learned": None if view.learned is None else view.learned.model_dump(mode="json"),
        "differences": [difference.model_dump(mode="json") for difference in view.differences],
    }
