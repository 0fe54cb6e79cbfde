"""A plan before it is carried out: what happens where, how it is undone, where ranks differ."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparkserve.engine.sglang import differing
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.plan import Effect, Plan, PutFile, Stage, Step
from sparkserve.planning.gids import GidPlan
from sparkserve.report.console import Answer
from sparkserve.report.text import Line, Span, Style, line, one_line
from sparkserve.runs import without_secrets

_EFFECT_STYLES: dict[Effect, Style] = {
    "reads": "good", "writes-node": "warn", "stops-serving": "bad",
}  # fmt: skip


class Difference(NamedTuple):
    """One thing in which the ranks are told differently."""

    name: str
    """Option or variable."""
    values: tuple[str | None, ...]
    """By rank; None = this rank does not have it."""


def differences(specs: Sequence[EngineSpec]) -> dict[str, list[Difference]]:
    """Where the ranks' command lines and environments differ."""
    return {
        "argv": _argv_differences([spec.argv for spec in specs]),
        "env": _env_differences([spec.env for spec in specs]),
    }


def dry_run_answer(
    plan: Plan, specs: Sequence[EngineSpec], gids: Sequence[GidPlan] = (), *, verbosity: int
) -> Answer:
    """The whole dry run.

    gids: which GID index each rank is told, and why; empty = none is wanted.
    verbosity: 0 = the command line and environment of rank 0 stand for all, 1 = every rank's.
    """
    differ = differences(specs)
    nodes = {step.node for step in plan.steps}
    where = f"{len(nodes)} nodes" if len(nodes) > 1 else next(iter(nodes), "no node")
    lines = [line(Span("plan", "bold"), f" to {plan.verb} on {where}; nothing was changed")]
    lines.append(line(Span(f"{plan.run_id} stands for the id that the run will get", "dim")))
    for number, stage in enumerate(plan.stages, start=1):
        lines += [line(), *_stage(number, stage, nodes)]
    for spec in specs if verbosity else specs[:1]:
        lines += [line(), *_rank(spec)]
    lines += [line(), *_differences(differ, [f"rank {spec.rank} {spec.node}" for spec in specs])]
    if gids:
        lines += [line(), *_gids(gids)]
    data = {
        "ok": True,
        "gid_indexes": [
            {"node": one.node, "index": one.index, "why": one.told, "ports": one.member_lines}
            for one in gids
        ],
        "plan": without_secrets(plan).model_dump(mode="json"),
        "ranks": [
            {"rank": s.rank, "node": s.node, "argv": list(s.argv), "env": s.env} for s in specs
        ],
        "differences": {
            kind: {one.name: list(one.values) for one in found} for kind, found in differ.items()
        },
    }
    return Answer(lines, data)


def _stage(number: int, stage: Stage, nodes: set[str]) -> list[Line]:
    lines = [line(Span(f"stage {number}  {stage.title}", "bold"))]
    for _, group in itertools.groupby(stage.steps, key=lambda step: step.done_when):
        steps = list(group)
        lines += _steps(steps, nodes)
        lines += _once("done when", [step.done_when for step in steps])
        lines += _once("undo", [step.undo or "" for step in steps])
    return lines


def _steps(steps: Sequence[Step], nodes: set[str]) -> list[Line]:
    """One line per thing to do; what is done alike on several nodes stands once."""
    places: dict[tuple[Effect, str], list[str]] = {}
    for step in steps:
        places.setdefault((step.effect, _what(step)), []).append(step.node)
    where = {
        key: f"all {len(found)} nodes"
        if set(found) == nodes and len(found) > 1
        else ", ".join(found)
        for key, found in places.items()
    }
    width = max(len(text) for text in where.values())
    return [
        line(
            "  ",
            Span(f"{where[effect, what]:<{width}}  ", "name"),
            Span(f"{effect:<13}", _EFFECT_STYLES[effect]),
            what,
        )
        for effect, what in places
    ]


def _what(step: Step) -> str:
    if isinstance(step.action, PutFile):
        secret = ", secret" if step.action.secret else ""
        return f"write {step.action.path} (mode {step.action.mode:04o}{secret})"
    return one_line(step.title)


def _once(label: str, texts: Sequence[str]) -> list[Line]:
    """The same sentence of several steps stands once."""
    return [
        line("    ", Span(f"{label if i == 0 else '':<9}  ", "dim"), one_line(text))
        for i, text in enumerate(dict.fromkeys(text for text in texts if text))
    ]


def _rank(spec: EngineSpec) -> list[Line]:
    lines = [line(Span(f"rank {spec.rank} on {spec.node}", "bold"))]
    lines.append(line("  ", Span("env", "dim")))
    lines += [line(f"    {name}={shlex.quote(value)}") for name, value in sorted(spec.env.items())]
    lines.append(line("  ", Span("argv", "dim")))
    lines += [line("    ", text) for text in _folded(spec.argv)]
    return lines


def _folded(argv: Sequence[str]) -> list[str]:
    """A command line as it can be pasted: an option and its value on one line."""
    groups: list[list[str]] = []
    for part in argv:
        if not groups or part.startswith("--"):
            groups.append([])
        groups[-1].append(shlex.quote(part))
    return [
        " ".join(group) + (" \\" if i < len(groups) - 1 else "") for i, group in enumerate(groups)
    ]


def _differences(differ: Mapping[str, list[Difference]], ranks: Sequence[str]) -> list[Line]:
    if len(ranks) == 1:
        return [line("one rank: nothing to differ from")]
    found = [one for kind in differ.values() for one in kind]
    if not found:
        return [line("the ranks are told the same")]
    lines = [line(Span("where the ranks differ", "bold"))]
    for one in found:
        lines.append(line("  ", one.name))
        width = max(len(rank) for rank in ranks)
        lines += [
            line("    ", Span(f"{rank:<{width}}  ", "dim"), "(not set)" if value is None else value)
            for rank, value in zip(ranks, one.values, strict=True)
        ]
    return lines


def _gids(gids: Sequence[GidPlan]) -> list[Line]:
    """Per node the index that NCCL is told, and per port why it is usable."""
    lines = [line(Span("GID index for NCCL, from each node's own tables", "bold"))]
    for one in gids:
        lines.append(line("  ", Span(one.node, "name"), f"  {one.told}"))
        lines += [line("    ", Span(text, "dim")) for text in one.member_lines]
        lines += [line("    ", Span(one.remark, "warn"))] if one.remark else []
    return lines


def _argv_differences(argvs: Sequence[Sequence[str]]) -> list[Difference]:
    """Each differing position, named after the option it belongs to."""
    found: list[Difference] = []
    position = 0
    for column in differing(argvs):
        while tuple(argv[position] if position < len(argv) else "" for argv in argvs) != column:
            position += 1
        longest = max(argvs, key=len)
        option = next(
            (part for part in reversed(longest[: position + 1]) if part.startswith("--")),
            f"argv[{position}]",
        )
        values = tuple(argv[position] if position < len(argv) else None for argv in argvs)
        found.append(Difference(option, values))
        position += 1
    return found


def _env_differences(environments: Sequence[Mapping[str, str]]) -> list[Difference]:
    names: dict[str, Any] = dict.fromkeys(name for env in environments for name in env)
    columns = ((name, tuple(env.get(name) for env in environments)) for name in sorted(names))
    return [Difference(name, values) for name, values in columns if len(set(values)) > 1]
