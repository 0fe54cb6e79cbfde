"""``sparkserve plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors
from sparkserve.cli.options import OptionGroup, TargetOptions, TuningOptions
from sparkserve.report.console import Console

_EXAMPLES = (
    "sparkserve plan",
    "sparkserve plan --profile my.toml --live",
    "sparkserve plan --profile my.toml --available 114",
    "sparkserve plan -p my.toml --set context.kv_tokens=6000000",
    "sparkserve plan --json | jq .mends",
)


@dataclass(frozen=True)
class PlanOptions(OptionGroup):
    """What plan alone knows."""

    live: Annotated[bool, typer.Option("--live", help="Read every node's memory over SSH.")] = False
    available: Annotated[
        float | None,
        typer.Option(
            "--available",
            min=0.1,
            max=4096,
            metavar="GIB",
            help="MemAvailable of every node instead.",
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="config.json and weights of the model."),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Learn from this engine log, not from runs."),
    ] = None
    learn: Annotated[
        bool, typer.Option("--learn/--no-learn", help="Whether earlier runs correct the plan.")
    ] = True
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not read this machine's memory.")
    ] = False


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "plan", examples=_EXAMPLES)(plan)


def plan(
    console: Console, options: PlanOptions, target: TargetOptions, tuning: TuningOptions
) -> int:
    """Show whether a profile fits the memory of its nodes.

    Without --live no node is asked: the memory of a Spark is assumed, and only this machine's
    is read. A combination that cannot boot is refused with the term that breaks and the nearest
    value that fits. Exit code 0 where it fits, 5 where memory does not, 2 where a setting cannot
    work.
    """
    from sparkserve.errors import ConfigError
    from sparkserve.ops import plan as use_case
    from sparkserve.report.memory_view import PlanView, plan_answer

    if options.offline and options.live:
        raise ConfigError("--offline and --live contradict each other: name one of them")
    request = use_case.PlanRequest(
        target=target.target(tuning.values()),
        available_gib=options.available,
        live=options.live,
        checkpoint=options.checkpoint,
        learn=options.learn,
        meminfo=None if options.offline else use_case.PlanRequest.meminfo,
        log=options.log,
    )
    result = use_case.run(request, open_doors())
    view = PlanView(
        profile=result.resolved.profile.profile.name,
        plan=result.plan,
        findings=result.findings,
        reasons=result.resolved.reasons,
        learned=result.learned,
        differences=result.differences,
    )
    console.answer(plan_answer(view, width=console.width))
    return int(result.exit_code)
