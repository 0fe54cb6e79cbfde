"""Whether packed shards and a packer are as they should be."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
