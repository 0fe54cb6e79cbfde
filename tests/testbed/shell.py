"""Runs the machine's tools for the testbed, and says what went wrong when one fails."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class TestbedError(RuntimeError):
    """The simulated cluster could not be built or changed."""

    __test__ = False


def run(
    *argv: str | Path | int, check: bool = True, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run one program with text output captured.

    Raises:
        TestbedError: it failed (unless ``check`` is false), or ran past ``timeout_s``.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=stdin, text=True, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"no end after {timeout_s} s: {shlex.join(words)}") from error
    if check and done.returncode:
        raise TestbedError(
            f"exit {done.returncode}: {shlex.join(words)}\n"
            f"{done.stderr.strip()}{done.stdout[-500:]}"
        )
    return done


def run_batch(tool: Sequence[str], lines: Sequence[str]) -> None:
    """Feed lines to ``ip -batch -`` or ``tc -batch -``: one process for many changes."""
    run(*tool, "-batch", "-", stdin="\n".join(lines) + "\n")


def wait_until(
    condition: Callable[[], T | None], *, what: str, deadline_s: float = 15, poll_s: float = 0.01
) -> T:
    """Poll until the condition gives something true, and return that.

    Raises:
        TestbedError: it did not within ``deadline_s``.
    """
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TestbedError(f"still not after {deadline_s} s: {what}")
        time.sleep(poll_s)
