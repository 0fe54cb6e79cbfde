"""Errors to message, hint and exit code; what nobody foresaw becomes a saved traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sparkserve import __version__
from sparkserve.cli import interrupts
from sparkserve.errors import ExitCode, SparkserveError
from sparkserve.report import error_view
from sparkserve.report.console import Console

if TYPE_CHECKING:
    from sparkserve.cli.options import OutputOptions

_PIPE_CLOSED = 141
"""What a shell shows for a program that SIGPIPE ended."""


@contextlib.contextmanager
def reporting(output: OutputOptions, *, ndjson: bool) -> Iterator[Console]:
    """Run a command's body: errors are shown and leave as ``typer.Exit`` with their code."""
    console = Console()
    try:
        console = output.console()
        with interrupts.second_ends_at_once():
            yield console
    except SparkserveError as error:
        lines = error_view.lines_of(error)
        _fail(console, error_view.error_data(error), ndjson=ndjson, lines=lines)
    except KeyboardInterrupt:
        lines = error_view.error_lines("interrupted")
        _fail(console, error_view.interrupted_data(), ndjson=ndjson, lines=lines)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001  the border of the process: a bug must leave a trace
        _bug(console, error, ndjson=ndjson)
    _check_results(console)


def _fail(console: Console, data: dict[str, Any], *, ndjson: bool, lines: list[Any]) -> None:
    """Show an error in the console's mode and leave with its code."""
    if console.mode == "json":
        if ndjson:
            from sparkserve.report.launch_view import result_event

            failed = result_event(datetime.now(UTC), None, {"ok": False, "error": data})
            console.record(failed.model_dump_json())
        else:
            console.document({"error": data})
    console.error(lines)
    raise typer.Exit(data["exit_code"])


def _bug(console: Console, error: Exception, *, ndjson: bool) -> None:
    text = "".join(traceback.format_exception(error))
    try:
        place = str(_save(text))
    except OSError:
        # The traceback must not be lost to the trouble that it may be about.
        console.error(error_view.error_lines(text.rstrip()))
        place = "the traceback above"
    data = error_view.bug_data(error, place)
    lines = error_view.error_lines(
        f"internal error, a bug in sparkserve: {data['message']}\ntraceback saved in {place}",
        f"report it with the output of: cat {place}",
    )
    _fail(console, data, ndjson=ndjson, lines=lines)


def _save(text: str) -> Path:
    """Write a traceback with what a reader needs to know of this machine."""
    from sparkserve.files import replace_file
    from sparkserve.paths import state_dir

    head = (
        f"sparkserve {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {' '.join(sys.argv[1:2])}\n\n"
    )
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    path = state_dir() / "crashes" / f"{stamp}.txt"
    replace_file(path, f"{head}{text}".encode(), mode=0o600)
    return path


def _check_results(console: Console) -> None:
    """Leave with an error where the results did not reach whoever asked for them."""
    error = console.lost_results
    if error is None:
        return
    # Whatever is still buffered would fail again when the interpreter ends.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        raise typer.Exit(_PIPE_CLOSED)
    console.error(error_view.error_lines(f"cannot write the result: {error.strerror}"))
    raise typer.Exit(int(ExitCode.FINDINGS))
