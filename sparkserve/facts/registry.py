"""All probes, and those that each stage needs."""

from __future__ import annotations

from typing import Any

from sparkserve.facts import checkpoint, host, memory, network, runtime, storage
from sparkserve.facts.probe import Probe

LAUNCH: tuple[Probe[Any], ...] = (
    host.IDENTITY,
    memory.MEMINFO,
    network.ADDRESSES,
    network.PORTS,
    storage.ROOT_SPACE,
    runtime.PYTHON,
    runtime.HOLDER,
    checkpoint.FILES,
)
"""What a launch must know about every node."""
