"""Settings of a profile that cannot work, or not together."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
