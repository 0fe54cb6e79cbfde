"""The one way in which an engine process ends when it must not serve. Standard library only."""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_REFUSED = 78
"""``errors.ExitCode.REFUSED``, repeated so that this module depends on nothing."""


def die(adapter: str, reason: str) -> NoReturn:
    """Say why on stderr in one line and end the process with exit code 78.

    adapter: the adapter that refuses, or ``frame`` for the plugin itself.

    Raises:
        SystemExit: always; SGLang's plugin loader swallows every ``Exception``, and SystemExit
            is none. Call it on the main thread only: threads ignore it.
    """
    sys.stderr.write(f"sparkserve: FATAL {adapter} {' '.join(reason.split())}\n")
    sys.stderr.flush()
    raise SystemExit(EXIT_REFUSED)
