"""Clocks and power under load."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
