"""Unified memory: enough, in large blocks, not reserved, not swapped, not held by others."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
