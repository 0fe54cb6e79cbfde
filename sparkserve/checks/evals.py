"""Whether an evaluation or a benchmark may be believed."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
