"""``sparkserve completion``, and the answers to the shell's own questions."""

from __future__ import annotations

import importlib
import os
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any

import typer

from sparkserve.cli.command import command
from sparkserve.errors import ConfigError
from sparkserve.report.console import Answer, Console
from sparkserve.report.text import line

_PROGRAM = "sparkserve"
_VARIABLE = "_SPARKSERVE_COMPLETE"


class Shell(StrEnum):
    """Shells we have a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    examples = [
        'eval "$(sparkserve completion bash)"',
        "sparkserve completion zsh > ~/.zfunc/_sparkserve",
        "sparkserve completion fish > ~/.config/fish/completions/sparkserve.fish",
    ]
    command(app, "completion", examples=examples)(completion)


def prepare() -> None:
    """Where the shell asks for completions, make typer able to answer."""
    if _VARIABLE in os.environ:
        _typer_completion().completion_init()


def _typer_completion() -> Any:
    """Typer's own module: loaded only where it is needed, and exporting nothing by name."""
    return importlib.import_module("typer.completion")


def completion(
    console: Console,
    shell: Annotated[
        Shell | None,
        typer.Argument(metavar="bash|zsh|fish", help="Else $SHELL.", show_default=False),
    ] = None,
) -> None:
    """Print the script that makes a shell complete.

    It completes commands, options, profiles, clusters, runs and nodes.
    """
    name = shell.value if shell else PurePath(os.environ.get("SHELL", "")).name
    if name not in set(Shell):
        raise ConfigError(
            f"no completion for shell {name or 'unknown'!r}, expected one of: {', '.join(Shell)}",
            hint="sparkserve completion bash",
        )
    script: str = _typer_completion().get_completion_script(
        prog_name=_PROGRAM, complete_var=_VARIABLE, shell=name
    )
    console.answer(
        Answer(
            [line(text) for text in script.split("\n")],
            {"shell": name, "script": script},
            script.split("\n"),
        )
    )
