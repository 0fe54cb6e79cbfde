"""``sparkserve status``."""

from __future__ import annotations

import typer

from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors
from sparkserve.cli.options import RunOptions
from sparkserve.errors import ExitCode
from sparkserve.report.console import Console

_EXIT_CODES = {
    "failed": ExitCode.FINDINGS,
    "unhealthy": ExitCode.FINDINGS,
    "unreachable": ExitCode.UNREACHABLE,
}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    examples = ["sparkserve status", "sparkserve status --run 20261130 --json"]
    command(app, "status", examples=examples)(status)


def status(console: Console, which: RunOptions) -> int:
    """Show what every rank of a run does now.

    Asked from the nodes themselves. Exit code 1 where the run has failed, 3 where a node cannot
    be reached.
    """
    from sparkserve.ops import status as use_case
    from sparkserve.report.status_view import status_answer

    found = use_case.run(use_case.StatusRequest(which.choice()), open_doors())
    console.answer(status_answer(found, width=console.width))
    return int(_EXIT_CODES.get(found.outcome, ExitCode.OK))
