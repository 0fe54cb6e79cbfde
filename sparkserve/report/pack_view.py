"""A pack before it is carried out, and what came of it, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkserve.model.finding import Finding
from sparkserve.model.pack import LayerResult
from sparkserve.model.pack_result import READY, PackResult, RankOutcome, RankPlan, ShardPlan
from sparkserve.report.console import Answer
from sparkserve.report.finding_view import finding_block
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, line, pasted, wrapped
from sparkserve.units import format_bytes, format_duration

_PLAN_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("LAYER", right=True),
    Column("ROWS"),
    Column("BYTES", right=True),
    Column("THERE NOW"),
)
_RESULT_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("OUTCOME"),
    Column("SHARDS", right=True),
    Column("SIZE", right=True),
    Column("TIME", right=True),
    Column("RATE", right=True),
    Column("COMPARED"),
)
_FOUND = {"nothing": "", "part": "a part", "shard": "whole", "other": "another size"}
_STYLES: dict[str, Style] = {"failed": "bad", "interrupted": "warn"}


def plan_answer(result: PackResult, *, width: int | None) -> Answer:
    """The dry run."""
    lines = _plan(result.plans, width) if result.plans else [line("no node answered")]
    lines += wrapped(_problems(result.outcomes), width)
    data = {
        "ok": result.exit_code == 0,
        "plan": [
            plan.model_dump(mode="json") | {"needed_bytes": plan.needed_bytes}
            for plan in result.plans
        ],
        "findings": [_dumped(outcome.finding) for outcome in result.outcomes],
    }
    return Answer(lines, data, tuple(_file(p, s) for p in result.plans for s in p.shards or ()))


def _plan(plans: Sequence[RankPlan], width: int | None) -> list[Line]:
    where = f"{len(plans)} nodes" if len(plans) != 1 else plans[0].node
    return [
        line(Span("plan", "bold"), f" to pack on {where}; nothing was changed"),
        line(),
        *table(_PLAN_COLUMNS, [row for plan in plans for row in _plan_rows(plan)], width=width),
        line(),
        *wrapped(_places(plans), width),
    ]


def result_answer(result: PackResult, *, width: int | None) -> Answer:
    """What came of a pack."""
    rows = [_result_row(outcome) for outcome in result.outcomes]
    lines = [*table(_RESULT_COLUMNS, rows, width=width)]
    lines += wrapped(_problems(result.outcomes), width)
    lines += [line(), *_next_steps(result)]
    data = {
        "ok": result.exit_code == 0,
        "interrupted": result.interrupted,
        "ranks": [outcome.model_dump(mode="json") for outcome in result.outcomes],
    }
    manifests = [outcome.manifest for outcome in result.outcomes if outcome.manifest]
    return Answer(lines, data, tuple(manifests))


def _plan_rows(plan: RankPlan) -> list[list[Span]]:
    head = [Span(str(plan.rank)), Span(plan.node, "name")]
    if plan.shards is None:
        later = "" if plan.findings else ": the node will read config.json"
        unknown = f"not known{' yet' if later else ''}{later}"
        return [[*head, Span(""), Span(unknown), Span(""), Span("")]]
    return [
        [
            *(head if number == 0 else [Span(""), Span("")]),
            Span(str(shard.layer)),
            Span(_ranges(shard)),
            Span(f"{shard.file_bytes:,}"),
            Span(_FOUND[shard.found]),
        ]
        for number, shard in enumerate(plan.shards)
    ]


def _ranges(shard: ShardPlan) -> str:
    if len(shard.ranges) == 1:
        start, end = shard.ranges[0]
        return f"{start:,} to {end:,}"
    return f"{shard.rows:,} in {len(shard.ranges)} columns"


def _places(plans: Sequence[RankPlan]) -> list[Line]:
    """From where to where, and whether it fits; what is alike on several nodes stands once."""
    lines = []
    for label, texts in (
        ("from", {p.node: p.source or "" for p in plans}),
        ("why", {p.node: p.source_reason for p in plans}),
        ("to", {p.node: p.out for p in plans}),
        ("needs", {p.node: _fit(p) for p in plans}),
    ):
        nodes_by_text: dict[str, list[str]] = {}
        for node, text in texts.items():
            if text:
                nodes_by_text.setdefault(text, []).append(node)
        for number, (text, nodes) in enumerate(nodes_by_text.items()):
            head = Span(f"{label if number == 0 else '':<7}", "dim")
            where = "" if len(nodes) == len(plans) else f"{', '.join(nodes)}  "
            lines.append(line(head, Span(where, "name"), text))
    return lines


def _fit(plan: RankPlan) -> str:
    if plan.needed_bytes is None and plan.findings:
        return ""
    need = "not known yet" if plan.needed_bytes is None else format_bytes(plan.needed_bytes)
    free = "unknown" if plan.free_bytes is None else format_bytes(plan.free_bytes)
    return f"{need} and {format_bytes(plan.reserve_bytes)} in reserve; {free} free"


def _file(plan: RankPlan, shard: ShardPlan) -> str:
    return f"{plan.node}:{plan.out}/{shard.file}"


def _result_row(outcome: RankOutcome) -> list[Span]:
    size_bytes = sum(layer.file_bytes for layer in outcome.layers)
    rate = outcome.written_bytes / outcome.seconds if outcome.seconds > 0 else 0.0
    done = outcome.state == "done"
    return [
        Span(str(outcome.rank)),
        Span(outcome.node, "name"),
        Span(_did(outcome), _STYLES.get(outcome.state, "good")),
        Span(str(len(outcome.layers)) if done else ""),
        Span(format_bytes(size_bytes) if done else ""),
        Span(format_duration(outcome.seconds) if outcome.seconds else ""),
        Span(f"{format_bytes(rate)}/s" if outcome.written_bytes else ""),
        Span(_compared(outcome.layers) if done else ""),
    ]


def _did(outcome: RankOutcome) -> str:
    if outcome.state != "done":
        return outcome.state
    actions = list(dict.fromkeys(layer.action for layer in outcome.layers))
    return ", ".join(actions) or "nothing"


def _compared(layers: Sequence[LayerResult]) -> str:
    """``1,037 rows of 2``, ``all rows``, or what was not done."""
    how = {layer.against_source for layer in layers}
    if how == {"full"}:
        return "every row"
    if "sample" in how:
        return f"{sum(layer.compared_rows for layer in layers):,} rows"
    return "nothing"


def _problems(outcomes: Sequence[RankOutcome]) -> list[Line]:
    findings = [one.finding for one in outcomes if one.finding and one.state != "interrupted"]
    return [line(), *finding_block(findings)] if findings else []


def _next_steps(result: PackResult) -> list[Line]:
    failed = [outcome for outcome in result.outcomes if outcome.state != "done"]
    if result.interrupted or failed:
        others = "the others are done; " if len(failed) < len(result.outcomes) else ""
        if all(one.finding and one.finding.check_id == READY for one in failed):
            return [line(f"{others}nothing was written{' there' if others else ''}")]
        return [line(f"{others}the same command goes on from what was written")]
    steps = result.next_commands
    heads = ["next: ", *["      "] * (len(steps) - 1)]
    return [pasted(Span(head, "dim"), step) for head, step in zip(heads, steps, strict=True)]


def _dumped(finding: Finding | None) -> dict[str, Any] | None:
    return None if finding is None else finding.model_dump(mode="json")
