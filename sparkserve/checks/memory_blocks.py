"""Contiguous memory: whether the driver can still get large blocks, and what its log line means."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import gib, rules_apply, shown
from sparkserve.checks.scene import Scene
from sparkserve.facts.baseline import NodeBaseline, blocks_of
from sparkserve.facts.gpu import NO_ANSWER, Gpus
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.kernel_log import KernelLog
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.unified import Buddyinfo, Compaction, Meminfo
from sparkserve.units import GIB, MIB

_LARGE, _MIDDLE = 32 * MIB, 4 * MIB
_ENOUGH_BLOCKS = 200
"""Gate of a public recipe; a fresh boot has about 780, a sick node 0 to 11."""
_GATE_AVAILABLE_BYTES = 96 * GIB
"""The same gate asks for this much MemAvailable."""
_BASELINE_SHARE = 0.25
"""Part of its own post-reboot blocks below which a node is warned of: 200 of 780. [proposal]"""
_FLOOR_BYTES = 2 * GIB
"""Floor while serving, of a public recipe's guard."""
_NO_PROGRESS_S = 60.0
_NVRM = re.compile(r"NVRM:.*(?:NV_ERR_NO_MEMORY|_memdescAllocInternal)")
_READY = re.compile(
    r"fired up and ready to roll|Application startup complete|Uvicorn running on|is ready"
)


def _contiguous(scene: Scene) -> Iterator[Judgement]:
    for place, buddyinfo in scene.each(Buddyinfo):
        if not rules_apply(scene, place):
            continue
        versions = scene.near(place, HostVersions)
        page = (versions.page_bytes if versions else None) or 4096
        large = blocks_of(buddyinfo, page, _LARGE)
        middle = blocks_of(buddyinfo, page, _MIDDLE)
        if large is None and middle is None:
            yield Judgement(
                place, "unknown", "no zone Normal with large blocks in /proc/buddyinfo",
                evidence=shown(scene, place, Buddyinfo),
            )  # fmt: skip
        elif large is not None:
            yield _judged(scene, place, _Count("32 MiB", large, _ENOUGH_BLOCKS, buddyinfo, page))
        elif middle is not None:
            # This kernel keeps no list of 32 MiB blocks; a site that counted 4 MiB ones had 0
            # when it was sick.
            yield _judged(scene, place, _Count("4 MiB", middle, 1, buddyinfo, page))


class _Count:
    """How many large blocks a node has, and how many it must have."""

    def __init__(
        self, size: str, blocks: float, enough: int, buddyinfo: Buddyinfo, page: int
    ) -> None:
        self.size, self.blocks, self.enough = size, int(blocks), enough
        # The largest size that is still there, to show how far the memory is split.
        sizes = [
            (page << k, count)
            for zone in buddyinfo.zones
            if zone.name == "Normal"
            for k, count in enumerate(zone.blocks)
            if count
        ]
        self.largest = max(sizes, default=(0, 0))

    @property
    def told(self) -> str:
        """The count in words."""
        text = f"{self.blocks} blocks of {self.size} in zone Normal"
        if self.blocks < self.enough and self.largest[1]:
            size, count = self.largest
            text += f" ({count} of {size // MIB or size / MIB:g} MiB are the largest)"
        return text


def _judged(scene: Scene, place: str | None, count: _Count) -> Judgement:
    memory = scene.near(place, Meminfo)
    available = memory.available_bytes if memory else None
    with_memory = "" if available is None else f", MemAvailable {gib(available)}"
    told = count.told + with_memory + _compaction(scene, place)
    if count.blocks < count.enough:
        if available is not None and available < _GATE_AVAILABLE_BYTES / 2:
            # A server holds the memory: that few blocks are left says nothing of fragmentation.
            return Judgement(place, "skipped", f"{told}: memory is in use")
        return Judgement(
            place, "fail", told,
            f"at least {count.enough} blocks of {count.size} in zone Normal",
            why=_why(available), evidence=shown(scene, place, Buddyinfo, Meminfo, Compaction),
        )  # fmt: skip
    return _by_itself(scene, place, count, told) or passed(place, told)


def _why(available: int | None) -> str:
    if available is None or available < _GATE_AVAILABLE_BYTES:
        return ""
    return (
        f"the driver needs physically contiguous blocks, and none are left although"
        f" {gib(available)} are available"
    )


def _by_itself(scene: Scene, place: str | None, count: _Count, told: str) -> Judgement | None:
    """A warning where the node has far fewer blocks than it had after its reboot."""
    baseline = scene.of(place, NodeBaseline)
    memory = scene.near(place, Meminfo)
    if baseline is None or (
        memory is not None
        and memory.available_bytes is not None
        and memory.available_bytes < _GATE_AVAILABLE_BYTES
    ):
        return None
    was = baseline.large_blocks if count.size == "32 MiB" else baseline.middle_blocks
    if was is None or count.blocks >= _BASELINE_SHARE * was:
        return None
    when = "after its reboot" if baseline.is_post_reboot else "at its best"
    return Judgement(
        place, "fail", f"{told}; {int(was)} {when}",
        f"at least {_BASELINE_SHARE:.0%} of what this node had {when}",
        severity="warning", evidence=shown(scene, place, Buddyinfo, NodeBaseline),
    )  # fmt: skip


def _compaction(scene: Scene, place: str | None) -> str:
    counts = scene.near(place, Compaction)
    if counts is None:
        return ""
    named = {
        "compact_stall": counts.stalls, "compact_fail": counts.failures,
        "compact_success": counts.successes,
    }  # fmt: skip
    told = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return f"; {told}" if told else ""


def _driver_lines(scene: Scene) -> Iterator[Judgement]:
    for place, log in scene.each(KernelLog):
        lines = [line for line in log.lines if _NVRM.search(line)]
        if not lines:
            continue
        engine = scene.near(place, EngineLog)
        count = f"{len(lines)} NVRM line{'s' if len(lines) > 1 else ''}"
        ended = engine is not None and any(_READY.search(line.text) for line in engine.lines)
        reasons = _starved(scene, place, engine)
        if len(lines) > 1 and not ended and reasons:
            yield Judgement(
                place, "fail", f"{count}; {'; '.join(reasons)}",
                "progress of the engine, memory above the floor, nvidia-smi that answers",
                code="MEM_FRAGMENTED",
                severity="error",
                why="the driver finds no large blocks any more and the load stands still",
                fix="stop all ranks; sync, drop caches and compact; reboot where the count of"
                " large blocks in /proc/buddyinfo stays low",
                evidence=(*lines[-2:], *shown(scene, place, Meminfo)),
            )  # fmt: skip
        else:
            start = " during a successful start" if ended else ""
            yield passed(place, f"{count}{start}: the driver logs it on paths that recover")


def _starved(scene: Scene, place: str | None, engine: EngineLog | None) -> list[str]:
    """Why lines of the driver are a fault here; empty where one of the conditions is missing."""
    if engine is None or engine.quiet_s is None or engine.quiet_s < _NO_PROGRESS_S:
        return []
    memory, gpus = scene.near(place, Meminfo), scene.near(place, Gpus)
    found = []
    available = memory.available_bytes if memory else None
    if available is not None and available < _FLOOR_BYTES:
        found.append(f"MemAvailable {gib(available)} is below the floor of {gib(_FLOOR_BYTES)}")
    if gpus is not None and gpus.problem == NO_ANSWER:
        found.append(NO_ANSWER)
    return [f"no line of the engine for {engine.quiet_s:.0f} s", *found] if found else []


CHECKS: tuple[Check, ...] = (
    Check(
        "MEM.CONTIGUOUS", "MEM_FRAGMENTED", "large blocks of memory are left",
        ("doctor", "launch"), "error", "memory", (Buddyinfo,), _contiguous,
        why="the driver needs physically contiguous blocks; days of uptime and page cache split"
        " the memory until none are left, whatever MemAvailable says",
        fix="with nothing serving: sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches; echo 1 >"
        " /proc/sys/vm/compact_memory', then look again; reboot where the count stays low",
        symptom="The load of the weights crawls or the node stops answering SSH, with"
        " `NV_ERR_NO_MEMORY` of the driver and plenty of MemAvailable.",
    ),
    Check(
        "MEM.NVRM", "MEM_NVRM_LINE_ALONE", "the driver's out-of-memory lines, weighed",
        ("watch", "doctor"), "info", "memory", (KernelLog,), _driver_lines,
        why="the driver logs this line on paths that recover, too: starts with 23 of them served",
        fix="nothing, where the engine goes on",
        symptom="`NV_ERR_NO_MEMORY ... _memdescAllocInternal` in dmesg during a start.",
        also=("MEM_FRAGMENTED",),
    ),
)  # fmt: skip
