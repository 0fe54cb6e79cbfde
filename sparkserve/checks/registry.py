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

_MODULES = (
    ssh, host, parity, power, memory, fabric, gids, nccl, bandwidth, containers, storage, packing,
    ports, profile, logs, progress, replies, evals,
)  # fmt: skip
THEMES: dict[str, tuple[Check, ...]] = {
    "launch": launching.LAUNCH,
    **{module.__name__.rpartition(".")[2]: module.CHECKS for module in _MODULES},
}
"""Name of the theme -> its checks, in the order in which they are shown."""
ALL: tuple[Check, ...] = tuple(check for checks in THEMES.values() for check in checks)


def of_stage(stage: Stage) -> tuple[Check, ...]:
    """The checks that a stage must pass."""
    return tuple(check for check in ALL if stage in check.stages)


def theme_of(check_id: str) -> str:
    """The theme of a check.

    Raises:
        KeyError: there is no such check.
    """
    for theme, checks in THEMES.items():
        if any(check.id == check_id for check in checks):
            return theme
    raise KeyError(check_id)
