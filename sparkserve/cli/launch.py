"""``sparkserve launch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sparkserve.cli import interrupts
from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors, this_python
from sparkserve.cli.options import OptionGroup, TargetOptions, TuningOptions
from sparkserve.report.console import Console

if TYPE_CHECKING:
    from sparkserve.model.event import Event, Observer
    from sparkserve.model.node_state import RunStatus
    from sparkserve.ops.doors import Doors
    from sparkserve.ops.launch import LaunchResult

_EXAMPLES = (
    "sparkserve launch",
    "sparkserve launch --dry-run",
    "sparkserve launch --nodes 4 --profile dsv41-tp4",
    "sparkserve launch --hosts spark1,spark2 --set serving.port=9000",
    "sparkserve launch --ensure --json | jq -c 'select(.kind == \"result\")'",
)


@dataclass(frozen=True)
class LaunchOptions(OptionGroup):
    """What launch alone knows."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show the plan; change nothing.")
    ] = False
    ensure: Annotated[
        bool, typer.Option("--ensure", help="Take up an equal run that serves or starts already.")
    ] = False


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "launch", examples=_EXAMPLES, ndjson=True, steps=True)(launch)


def launch(
    console: Console, target: TargetOptions, tuning: TuningOptions, options: LaunchOptions
) -> None:
    """Start a profile on its nodes, until it has answered a question.

    Checks first, and changes nothing where a check fails. Ctrl-C before it is ready stops what
    was started; afterwards the run goes on without this command.
    """
    from sparkserve.ops import launch as use_case
    from sparkserve.report.launch_view import observer_for

    request = use_case.LaunchRequest(
        target=target.target(tuning.values()),
        this_python=this_python(),
        dry_run=options.dry_run,
        ensure=options.ensure,
    )
    doors = open_doors()
    with observer_for(console) as view:
        result = use_case.run(request, doors, _Farewell(view))
    if result.record is None:
        _show_plan(console, doors, result)
    else:
        _show_serving(console, doors, result)


class _Farewell:
    """Hands events on; once a run exists, the second Ctrl-C names the command that ends it."""

    def __init__(self, view: Observer) -> None:
        self._view = view
        self._run_id: str | None = None

    def event(self, event: Event) -> None:
        if event.run_id is not None and event.run_id != self._run_id:
            self._run_id = event.run_id
            interrupts.say_at_second(
                f"left at once; what was started may still run\n"
                f"hint: sparkserve stop {event.run_id}"
            )
        self._view.event(event)


def _show_plan(console: Console, doors: Doors, result: LaunchResult) -> None:
    from sparkserve.report.launch_view import finish
    from sparkserve.report.plan_view import dry_run_answer

    answer = dry_run_answer(
        result.plan, result.specs, result.gids, verbosity=console.settings.verbosity
    )
    finish(console, doors.now(), answer)


def _show_serving(console: Console, doors: Doors, result: LaunchResult) -> None:
    from sparkserve.report.launch_view import exposure_warning, finish, served_answer

    record = result.record
    if record is None:
        return
    status = _status(doors, record.run_id)
    answer = served_answer(record, status, width=console.width)
    finish(console, doors.now(), answer, record.run_id)
    warning = exposure_warning(record)
    if warning is not None:
        console.warn(warning)


def _status(doors: Doors, run_id: str) -> RunStatus | None:
    """What the nodes say right after the launch; None where they cannot be asked just now."""
    from sparkserve.errors import SparkserveError
    from sparkserve.ops import status
    from sparkserve.ops.run_choice import RunChoice

    try:
        return status.run(status.StatusRequest(RunChoice(run_id)), doors)
    except SparkserveError:
        # The launch itself went well, and `sparkserve status` will tell what is wrong now.
        return None
