"""``sparkserve stop``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkserve.cli import complete, interrupts
from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors
from sparkserve.cli.options import RunOptions
from sparkserve.errors import ExitCode
from sparkserve.report.console import Console

if TYPE_CHECKING:
    from sparkserve.model.event import Event


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    examples = [
        "sparkserve stop",
        "sparkserve stop --now",
        "sparkserve stop 20261130-173512-local-demo-4f2a",
    ]
    command(app, "stop", examples=examples)(stop)


def stop(
    console: Console,
    which: RunOptions,
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run id, or the beginning of one.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Do not let running requests finish.")] = False,
) -> int:
    """End a run on all its nodes.

    Its running requests may finish, for some seconds. Does nothing where it has ended already.
    Exit code 3 where a node could not be reached, so that its rank may still run.
    """
    from sparkserve.ops import stop as use_case
    from sparkserve.report.stop_view import stop_answer, stop_problem

    interrupts.say_at_second("left at once\nhint: sparkserve stop")
    request = use_case.StopRequest(which.choice(run_id), gentle=not now)
    result = use_case.run(request, open_doors(), _Phases(console))
    console.answer(
        stop_answer(result.run_id, result.nodes, clean=result.clean, width=console.width)
    )
    if result.clean:
        return int(ExitCode.OK)
    if console.mode == "quiet":
        console.warn(stop_problem(result.nodes))
    unreached = any(node.error for node in result.nodes)
    return int(ExitCode.UNREACHABLE if unreached else ExitCode.FINDINGS)


class _Phases:
    """Says what is under way; what was found comes with the result."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, event: Event) -> None:
        if event.kind == "phase":
            self._console.note(f"{event.message} ...")
