"""``sparkserve doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sparkserve.cli.command import command
from sparkserve.cli.options import OptionGroup
from sparkserve.errors import ConfigError
from sparkserve.report.console import Console

_EXAMPLES = ("sparkserve doctor --replay bundle --json",)


@dataclass(frozen=True)
class DoctorOptions(OptionGroup):
    """What doctor alone knows."""

    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="DIR", help="Judge a saved folder; touch no machine."),
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail at warnings and at what is unknown, too.")
    ] = False


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "doctor", examples=_EXAMPLES, steps=True)(doctor)


def doctor(console: Console, options: DoctorOptions) -> int:
    """Find what is wrong, name the node, and tell what mends it."""
    from sparkserve.ops import bundle
    from sparkserve.ops import doctor as use_case
    from sparkserve.report.doctor_view import doctor_answer

    if options.replay is None:
        raise ConfigError("name what to judge", hint="sparkserve doctor --replay DIR")
    result = use_case.replay(bundle.load(options.replay), strict=options.strict)
    verbosity = console.settings.verbosity
    console.answer(doctor_answer(result, width=console.width, verbosity=verbosity))
    return result.exit_code
