"""Whether all nodes are alike: versions, image, libraries, environment, tables."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
