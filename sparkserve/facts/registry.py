"""All probes, readers and asks, and those that each stage needs."""

from __future__ import annotations

from typing import Any

from sparkserve.facts import (
    bandwidth,
    baseline,
    checkpoint,
    compound,
    containers,
    disk_speed,
    environment,
    eval_records,
    exports,
    filesystems,
    firewall,
    gpu,
    host,
    kernel,
    kernel_log,
    links,
    logs,
    memory,
    model_config,
    nccl_library,
    network,
    packing,
    parity,
    rdma,
    rendered,
    replies,
    routes,
    runtime,
    samples,
    services,
    shards,
    sockets,
    ssh,
    storage,
    tools,
    unified,
    wanted,
    weights,
)
from sparkserve.facts.probe import Probe
from sparkserve.facts.reader import Ask, Reader

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

_THEMES = (
    compound, ssh, rdma, links, routes, firewall, bandwidth, nccl_library, unified, kernel,
    kernel_log, gpu, services, baseline, parity, containers, tools, filesystems, exports, packing,
    weights, sockets, disk_speed, logs, samples, environment, rendered, replies, eval_records,
    wanted, model_config,
)  # fmt: skip
READERS: tuple[Reader, ...] = (
    *(reader for theme in _THEMES for reader in theme.READERS), *ssh.LAST, *tools.LAST,
    *logs.LAST,
)  # fmt: skip
"""Every kind of text that is understood; the first that takes a reading reads it."""
ASKS: tuple[Ask, ...] = tuple(ask for theme in _THEMES for ask in theme.ASKS)
"""What ``doctor`` reads on every node, besides the probes of a launch."""
