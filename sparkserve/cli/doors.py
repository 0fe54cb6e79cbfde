"""The doors: everything outside that a use case may touch, opened in one place."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkserve.ops.doors import Doors

_PREFIX = "SPARKSERVE_"


def open_doors() -> Doors:
    """SSH and local processes, and the environment's profile values."""
    from sparkserve.ops.doors import Doors
    from sparkserve.transport.connect import connect

    return Doors(connect=connect, environment=environment())


def environment() -> dict[str, str]:
    """The variables that may set profile values."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}


def this_python() -> str:
    """The interpreter that runs sparkserve."""
    return sys.executable
