"""All checks, in the order in which they are shown."""

from __future__ import annotations

from sparkserve.checks import (
    bandwidth,
    containers,
    evals,
    fabric,
    gids,
    host,
    logs,
    memory,
    nccl,
    packing,
    parity,
    ports,
    power,
    profile,
    progress,
    replies,
    ssh,
    storage,
)
from sparkserve.checks import launch as launching
from sparkserve.checks.check import Check, Stage

_THEMES = (
    ssh, host, parity, power, memory, fabric, gids, nccl, bandwidth, containers, storage, packing,
    ports, profile, logs, progress, replies, evals,
)  # fmt: skip
ALL: tuple[Check, ...] = (
    *launching.LAUNCH,
    *(check for theme in _THEMES for check in theme.CHECKS),
)


def of_stage(stage: Stage) -> tuple[Check, ...]:
    """The checks that a stage must pass."""
    return tuple(check for check in ALL if stage in check.stages)
