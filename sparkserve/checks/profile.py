"""Settings of a profile that cannot work, or not together; by theme."""

from __future__ import annotations

from sparkserve.checks import (
    memory_plan,
    profile_engine,
    profile_memory,
    profile_network,
    profile_serving,
    profile_split,
)
from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = (
    *profile_network.CHECKS,
    *profile_memory.CHECKS,
    *profile_split.CHECKS,
    *profile_engine.CHECKS,
    *profile_serving.CHECKS,
    *memory_plan.CHECKS,
)
