"""Links, HCAs, subnets and cabling between the nodes."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
