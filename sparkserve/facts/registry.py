"""All probes, and those that each stage needs."""

from __future__ import annotations

from typing import Any

from sparkserve.facts import checkpoint, host, memory, network, runtime, shards, storage
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
ENGRAM: tuple[Probe[Any], ...] = (shards.SHARDS, shards.SOURCE)
"""What a launch must know besides, where a profile has an Engram directory."""
PACK: tuple[Probe[Any], ...] = (host.IDENTITY, runtime.PYTHON, *ENGRAM, storage.ENGRAM_SPACE)
"""What packing and checking of Engram rows must know about every node."""
ALL: tuple[Probe[Any], ...] = tuple(dict.fromkeys((*LAUNCH, *PACK)))
