"""The application: all commands under one name."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkserve import __version__
from sparkserve.cli import (
    chat,
    cluster,
    completion,
    doctor,
    launch,
    logs,
    pack,
    plan,
    profile,
    status,
    stop,
    verify,
    version,
)
from sparkserve.cli.command import HelpOpt, group, print_help

_PROGRAM = "sparkserve"
_EPILOG = """\
The flow:
  sparkserve cluster init lab --hosts spark1,spark2 --default  who the nodes are
  sparkserve doctor                                            what is wrong
  sparkserve plan                                              does it fit
  sparkserve pack                                              rows onto NVMe
  sparkserve launch --dry-run                                  what would happen
  sparkserve launch                                            until it answers
  sparkserve chat 'What is the capital of France?'             talk to it
  sparkserve status                                            every rank, now
  sparkserve stop                                              end it everywhere

Without --cluster or --hosts the default cluster is meant, else this machine.
Exit codes: 0 ok, 1 findings, 2 usage, 3 unreachable, 4 hardware, 5 memory,
6 not ready, 7 gate, 70 bug, 130 interrupted."""

app = group(summary="Serve frontier models on one to eight NVIDIA DGX Sparks.", epilog=_EPILOG)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{_PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    _help: HelpOpt = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    print_help(ctx, ctx.invoked_subcommand is None)


doctor.add_to(app)
plan.add_to(app)
pack.add_to(app)
launch.add_to(app)
status.add_to(app)
logs.add_to(app)
chat.add_to(app)
stop.add_to(app)
verify.add_to(app)
app.add_typer(profile.app, name="profile")
app.add_typer(cluster.app, name="cluster")
completion.add_to(app)
version.add_to(app)


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    completion.prepare()
    app(prog_name=_PROGRAM)


if __name__ == "__main__":
    main()
