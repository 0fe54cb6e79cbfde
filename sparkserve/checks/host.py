"""Kernel, services, Wi-Fi, clocks and identity of the hosts."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
