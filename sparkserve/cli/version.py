"""``sparkserve version``."""

from __future__ import annotations

import platform

import typer

from sparkserve import __version__
from sparkserve.cli.command import command
from sparkserve.report.console import Answer, Console
from sparkserve.report.text import line


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "version", examples=["sparkserve version --json"])(version)


def version(console: Console) -> None:
    """Show which sparkserve this is."""
    python = platform.python_version()
    console.answer(
        Answer(
            [line(f"sparkserve {__version__}"), line(f"Python {python}, {platform.platform()}")],
            {"version": __version__, "python": python, "platform": platform.platform()},
            (__version__,),
        )
    )
