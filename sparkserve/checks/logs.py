"""What the log lines of all ranks mean together."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
