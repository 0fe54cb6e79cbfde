"""Unified memory as the kernel counts it; on a Spark this is GPU memory too."""

from __future__ import annotations

from sparkserve.facts.probe import Context, Probe, UnusableOutput
from sparkserve.model.base import Model


class MemoryFacts(Model):
    """``/proc/meminfo`` in bytes."""

    total_bytes: int
    available_bytes: int
    free_bytes: int


def _script(_: Context) -> str:
    return "cat /proc/meminfo"


def _parse(text: str) -> MemoryFacts:
    counts = {}
    for line in text.splitlines():
        name, separator, rest = line.partition(":")
        words = rest.split()
        if separator and words and words[0].isdigit():
            counts[name.strip()] = int(words[0]) * 1024
    missing = [n for n in ("MemTotal", "MemAvailable", "MemFree") if n not in counts]
    if missing:
        raise UnusableOutput(f"no {missing[0]} line in /proc/meminfo")
    return MemoryFacts(
        total_bytes=counts["MemTotal"],
        available_bytes=counts["MemAvailable"],
        free_bytes=counts["MemFree"],
    )


MEMINFO = Probe("memory.meminfo", MemoryFacts, _script, _parse)
