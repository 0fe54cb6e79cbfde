"""``sparkserve logs``."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from sparkserve.cli import complete, interrupts
from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors
from sparkserve.cli.options import RunOptions
from sparkserve.report.console import Console


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    examples = [
        "sparkserve logs",
        "sparkserve logs spark2 --follow",
        "sparkserve logs 0 --lines 500 | less",
        "sparkserve logs --guard",
    ]
    command(app, "logs", examples=examples, ndjson=True)(logs)


def logs(
    console: Console,
    which: RunOptions,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="Node name or rank; all where none is named.",
            autocompletion=complete.nodes,
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines; Ctrl-C detaches.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", min=0, metavar="N", help="Last lines of each log (120).")
    ] = 120,
    guard: Annotated[
        bool, typer.Option("--guard", help="The guard's log in place of the engine's.")
    ] = False,
) -> None:
    """Show the engine's log of one rank or of all.

    The lines of several ranks begin with the names of their nodes.
    """
    from sparkserve.ops import logs as use_case
    from sparkserve.report.log_view import LogView

    cancel = threading.Event()
    view = LogView(console, named=node is None, broken=cancel.set)
    request = use_case.LogsRequest(
        which.choice(), node=node, lines=lines, follow=follow, guard=guard
    )
    if not follow:
        use_case.run(request, open_doors(), view.line, cancel)
        return
    console.watch_reader(cancel.set)
    with interrupts.detaching(cancel.set):
        record = use_case.run(request, open_doors(), view.line, cancel)
    if interrupts.was_interrupted():
        console.note(f"detached; run {record.run_id} goes on")
