"""Unified memory: enough, in large blocks, not reserved, not swapped, not held by others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import gib, rules_apply, shown
from sparkserve.checks.memory_blocks import CHECKS as BLOCKS
from sparkserve.checks.memory_gates import CHECKS as GATES
from sparkserve.checks.memory_holders import CHECKS as HOLDERS
from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.baseline import NodeBaseline, is_idle
from sparkserve.facts.container_kinds import Memlock
from sparkserve.facts.gpu import GpuSamples
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.services import Services
from sparkserve.facts.unified import Meminfo, Reserve
from sparkserve.units import GIB, KIB

_TOTAL_BYTES = 119 * GIB
"""A GB10 shows 121.6 to 121.7 GiB. [proposal]"""
_RESERVE_BYTES = 1 * GIB
"""``vm.min_free_kbytes`` of 1,048,576."""
_SWAP_BYTES = 1 * GIB
_BEHIND_BEST_BYTES = 5 * GIB
"""How far below its own best an idle node's MemAvailable may lie."""
_PIN_FAILED = re.compile(r"ibv_reg_mr\w* failed with error Cannot allocate memory")


def _total(scene: Scene) -> Iterator[Judgement]:
    for place, memory in scene.each(Meminfo):
        if memory.total_bytes is None or not rules_apply(scene, place):
            continue
        told = f"MemTotal {gib(memory.total_bytes)}"
        if memory.total_bytes >= _TOTAL_BYTES:
            yield passed(place, told)
        else:
            yield Judgement(
                place, "fail", told, f"at least {gib(_TOTAL_BYTES)}",
                evidence=shown(scene, place, Meminfo),
            )  # fmt: skip


def _cma(scene: Scene) -> Iterator[Judgement]:
    for place, memory in scene.each(Meminfo):
        if memory.cma_total_bytes is None or memory.cma_free_bytes is None:
            continue
        free, total = memory.cma_free_bytes // KIB, memory.cma_total_bytes // KIB
        if free <= total:
            yield passed(place, f"CmaFree {free} kB of CmaTotal {total} kB")
            continue
        yield Judgement(
            place, "fail",
            f"CmaFree {free} kB > CmaTotal {total} kB{_kernel_told(scene, place)}",
            "CmaFree at most CmaTotal",
            evidence=shown(scene, place, Meminfo, HostVersions) + _pin_lines(scene, place),
        )  # fmt: skip
    yield from _undecided_pins(scene)


def _kernel_told(scene: Scene, place: str | None) -> str:
    versions = scene.near(place, HostVersions)
    if versions is None or versions.kernel is None:
        return ""
    if versions.cmdline is None:
        return f"; kernel {versions.kernel}"
    words = versions.cmdline.split()
    return f"; kernel {versions.kernel} {'with' if 'kho=off' in words else 'without'} kho=off"


def _pin_lines(scene: Scene, place: str | None) -> tuple[str, ...]:
    readings = [
        reading
        for other, log, reading in scene.seen(EngineLog)
        if (other == place or scene.same_place(other, place))
        and any(_PIN_FAILED.search(line.text) for line in log.lines)
    ]
    return evidence(readings)


def _undecided_pins(scene: Scene) -> Iterator[Judgement]:
    """A failed registration of memory has two causes: say what would tell them apart."""
    for place, log, reading in scene.seen(EngineLog):
        if not any(_PIN_FAILED.search(line.text) for line in log.lines):
            continue
        memory, limit = scene.near(place, Meminfo), scene.near(place, Memlock)
        free = memory.cma_free_bytes if memory is not None else None
        total = memory.cma_total_bytes if memory is not None else None
        cma_bad = free is not None and total is not None and free > total
        if cma_bad or (limit is not None and not limit.is_unlimited):
            continue
        cma = "not read" if free is None or total is None else "healthy"
        lock = "not read" if limit is None else "unlimited"
        yield Judgement(
            place, "unknown",
            f"ibv_reg_mr failed with Cannot allocate memory; Cma lines {cma}, memlock {lock}",
            "the measurement that tells CMA from memlock",
            why="the same line comes from a limited memlock and from pages in CMA",
            fix="on that node: grep Cma /proc/meminfo; uname -r; cat /proc/cmdline;"
            " in its container: sh -c 'ulimit -l'",
            evidence=evidence([reading]),
        )  # fmt: skip


def _reserve(scene: Scene) -> Iterator[Judgement]:
    known = dict(scene.each(Reserve))
    for place, reserve in known.items():
        size = reserve.min_free_bytes
        if size is None:
            continue
        memory = scene.near(place, Meminfo)
        told = f"{gib(size)} reserve (vm.min_free_kbytes = {size // KIB})"
        if size <= _RESERVE_BYTES:
            yield passed(place, told)
            continue
        yield _too_much_kept(scene, place, told + _below_free(memory))
    for place, memory in scene.each(Meminfo):
        if any(place == other or scene.same_place(place, other) for other in known):
            continue
        if sign := _below_free(memory):
            yield _too_much_kept(scene, place, f"vm.min_free_kbytes not read{sign}")


def _below_free(memory: Meminfo | None) -> str:
    """The visible sign of a large reserve: less available than free, by more than 1 GiB."""
    if memory is None or memory.free_bytes is None or memory.available_bytes is None:
        return ""
    if memory.free_bytes - memory.available_bytes <= _RESERVE_BYTES:
        return ""
    return f"; MemAvailable {gib(memory.available_bytes)} is below MemFree {gib(memory.free_bytes)}"


def _too_much_kept(scene: Scene, place: str | None, told: str) -> Judgement:
    return Judgement(
        place, "fail", told, "at most 1.0 GiB (1048576)",
        evidence=shown(scene, place, Reserve, Meminfo),
    )  # fmt: skip


def _swap(scene: Scene) -> Iterator[Judgement]:
    for place, memory in scene.each(Meminfo):
        used = memory.swap_used_bytes
        if used is not None and used > _SWAP_BYTES:
            yield Judgement(
                place, "fail",
                f"{gib(used)} of swap in use (of {gib(memory.swap_total_bytes or 0)})",
                "at most 1.0 GiB before a launch",
                evidence=shown(scene, place, Meminfo),
            )  # fmt: skip
        elif used is not None:
            yield passed(place, f"{gib(used)} of swap in use")
        yield from _behind_best(scene, place, memory)


def _behind_best(scene: Scene, place: str | None, memory: Meminfo) -> Iterator[Judgement]:
    baseline = scene.of(place, NodeBaseline)
    best = baseline.best_available_bytes if baseline is not None else None
    now = memory.available_bytes
    if best is None or now is None or not is_idle(memory):
        return
    if best - now > _BEHIND_BEST_BYTES:
        yield Judgement(
            place, "fail",
            f"MemAvailable {gib(now)}, {gib(best - now)} below this node's best of {gib(best)}",
            "at most 5.0 GiB below its best",
            evidence=shown(scene, place, Meminfo, NodeBaseline),
        )  # fmt: skip


_KILLERS = re.compile(r"(?i)earlyoom|oomd|nohang|anti-oom|oom-?guard|oom-?kill")
_MILD = re.compile(r"(?i)systemd-oomd(?:-.*)?")


def _killers(scene: Scene) -> Iterator[Judgement]:
    for place, services in scene.each(Services):
        active = [service.name for service in services.services if service.is_active]
        found = [name for name in active if _KILLERS.search(name)]
        for name in found:
            mild = _MILD.fullmatch(name) is not None
            yield Judgement(
                place, "fail", f"{name}.service is active", "no userspace OOM killer",
                severity="warning" if mild else None,
                fix=f"on {place or 'the node'}: sudo systemctl disable --now {name}.service",
                evidence=shown(scene, place, Services),
            )  # fmt: skip
        if not found:
            yield passed(place, f"none among {len(active)} active services")


def _unified(scene: Scene) -> Iterator[Judgement]:
    for place, gpu in scene.each(GpuSamples):
        asked = [sample for sample in gpu.samples if sample.asked_memory]
        if not asked:
            continue
        figures = [s for s in asked if s.memory_total_bytes or s.memory_used_bytes]
        if figures:
            continue
        memory = scene.near(place, Meminfo)
        total = memory.total_bytes if memory else None
        available = memory.available_bytes if memory else None
        told_total = "unknown" if total is None else f"{total / GIB:.2f} GiB"
        told_available = "unknown" if available is None else gib(available)
        yield passed(
            place, f"total {told_total}, available {told_available} by /proc/meminfo;"
            " GPU figures unknown ([N/A] is not 0)",
        )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    Check(
        "MEM.TOTAL", "MEM_TOTAL_LOW", "the whole memory of a Spark is there",
        ("doctor", "launch"), "error", "memory", (Meminfo,), _total,
        why="a Spark shows about 121.7 GiB; less means a reserved region or another machine",
        fix="look for mem= and hugepages in /proc/cmdline, and for a reserved region in dmesg",
        symptom="The memory plan does not fit, although the box is a Spark.",
    ),
    Check(
        "MEM.CMA", "MEM_KHO_CMA", "no memory is lost to Kexec HandOver",
        ("doctor", "watch"), "error", "memory", (Meminfo,), _cma,
        why="the kernel gave its Kexec HandOver region back as CMA pages: pages that the GPU's"
        " driver holds cannot be moved out of it, so RDMA cannot pin them",
        fix="add kho=off to the kernel's command line (/etc/default/grub, sudo update-grub,"
        " reboot), or boot a 6.17 kernel",
        symptom="After an update no launch works: `ibv_reg_mr_iova2 failed with error Cannot"
        " allocate memory` with tens of GiB free and memlock unlimited.",
    ),
    Check(
        "MEM.RESERVE", "MEM_MIN_FREE_KBYTES", "the kernel keeps little for itself",
        ("doctor",), "warning", "memory", (Reserve,), _reserve,
        why="a larger vm.min_free_kbytes lowers MemAvailable, which the engine's start reads",
        fix="sudo sysctl vm.min_free_kbytes=65536 before the start, or budget for it",
        symptom="The engine says that free memory is less than desired on a node that was made"
        " safe against running out of memory.",
    ),
    Check(
        "MEM.SWAP", "MEM_SWAP_DIRTY", "nothing of earlier runs lies in swap",
        ("doctor", "launch"), "warning", "memory", (Meminfo,), _swap,
        why="leftovers of earlier runs were swapped out; each retry finds a little less memory",
        fix="stop their owners, then: sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches;"
        " swapoff -a && swapon -a'",
        symptom="A memory fraction that worked for weeks is refused.",
    ),
    Check(
        "OOM.KILLERS", "MEM_USERSPACE_KILLER", "no userspace OOM killer runs",
        ("doctor", "watch"), "error", "memory", (Services,), _killers,
        why="the server holds 80 to 95 % of memory by design; such a tool takes that for a leak"
        " and kills it",
        fix="disable it on engine nodes, or exempt the engine's processes",
        symptom="The engine disappears every few minutes without a line of the kernel.",
    ),
    Check(
        "MEM.UNIFIED", "MEM_SMI_NA", "memory is read from the kernel, not from nvidia-smi",
        ("doctor", "watch"), "info", "memory", (GpuSamples,), _unified,
        why="nvidia-smi has no figure for unified memory and prints [N/A]",
        fix="read /proc/meminfo on the host",
        symptom="A dashboard shows 0 GB used on a full node, and a second model is sent there.",
    ),
    *BLOCKS,
    *HOLDERS,
    *GATES,
)  # fmt: skip
