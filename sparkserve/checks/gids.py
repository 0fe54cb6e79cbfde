"""GID indexes: what NCCL would use on every rank, and whether a pin is usable."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
