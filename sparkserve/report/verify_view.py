"""What is known of every shard: ranks by layers, and the reason where it is not all well."""

from __future__ import annotations

from sparkserve.model.pack_result import ShardVerdict, VerifyResult
from sparkserve.report.console import Answer
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, line, one_line, pasted, wrapped

_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("LAYER", right=True),
    Column("OUTCOME"),
    Column("CHECKSUMS"),
    Column("SOURCE"),
    Column("ROWS", right=True),
    Column("READER"),
)
_SOURCE = {"full": "every row"}
_STYLES: dict[str, Style] = {"pass": "good", "fail": "bad", "unknown": "warn"}


def verify_answer(result: VerifyResult, *, width: int | None) -> Answer:
    """The verdicts in all forms; quiet mode gets a word per rank and layer."""
    lines = [*table(_COLUMNS, [_row(verdict) for verdict in result.verdicts], width=width)]
    lines += wrapped(_reasons(result), width)
    fixes = dict.fromkeys(o.finding.fix for o in result.outcomes if o.finding and o.finding.fix)
    lines += [line(), *(pasted(Span("fix ", "dim"), fix) for fix in fixes)] if fixes else []
    lines += [line(), line(_summary(result))]
    data = {
        "ok": result.exit_code == 0,
        "strict": result.strict,
        "interrupted": result.interrupted,
        "shards": [verdict.model_dump(mode="json") for verdict in result.verdicts],
        "ranks": [outcome.model_dump(mode="json") for outcome in result.outcomes],
    }
    short = [f"{v.rank} {'-' if v.layer is None else v.layer} {v.outcome}" for v in result.verdicts]
    return Answer(lines, data, tuple(short))


def _row(verdict: ShardVerdict) -> list[Span]:
    source = verdict.against_source
    # A shard is left at its first fault, and the reason says which comparison found it.
    told = verdict.outcome != "fail"
    return [
        Span(str(verdict.rank)),
        Span(verdict.node, "name"),
        Span("" if verdict.layer is None else str(verdict.layer)),
        Span(verdict.outcome, _STYLES[verdict.outcome]),
        Span(verdict.checksums if told else "", _STYLES[verdict.checksums]),
        Span(_SOURCE.get(source, source) if told else "", _STYLES.get(source, "")),
        Span(f"{verdict.compared_rows:,}" if verdict.compared_rows else ""),
        Span(verdict.reader or ""),
    ]


def _reasons(result: VerifyResult) -> list[Line]:
    """Why shards failed or are unknown; a reason of several layers stands once per rank."""
    codes = {one.rank: f"  ({one.finding.code})" for one in result.outcomes if one.finding}
    told: dict[tuple[int, str], list[ShardVerdict]] = {}
    for verdict in result.verdicts:
        if verdict.reason:
            told.setdefault((verdict.rank, verdict.reason), []).append(verdict)
    lines = [
        line(
            f"rank {rank} {those[0].node}",
            f" layer {', '.join(str(v.layer) for v in those)} "
            if those[0].layer is not None
            else " ",
            Span(those[0].outcome, _STYLES[those[0].outcome]),
            f": {one_line(reason)}",
            Span(codes.get(rank, ""), "dim"),
        )
        for (rank, reason), those in told.items()
    ]
    return [line(), *lines] if lines else []


def _summary(result: VerifyResult) -> str:
    counts = dict.fromkeys(("pass", "fail", "unknown"), 0)
    for verdict in result.verdicts:
        counts[verdict.outcome] += 1
    parts = [f"{counts['pass']} passed"]
    parts += [f"{counts['fail']} failed"] if counts["fail"] else []
    parts += [f"{counts['unknown']} unknown"] if counts["unknown"] else []
    strict = ", which --strict counts as failed" if result.strict and counts["unknown"] else ""
    return f"shards: {', '.join(parts)}{strict}"
