"""Gates of measured memory: after a stop, and before a test. Pure, for the commands to use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import gib, is_serving, run_on, shown
from sparkserve.checks.scene import Scene
from sparkserve.facts.container_kinds import Containers
from sparkserve.facts.rendered import Request
from sparkserve.facts.samples import MemorySamples
from sparkserve.facts.unified import Meminfo
from sparkserve.units import GIB, KIB, MIB, parse_bytes

RECLAIM_PERIOD_S = 2.0
RECLAIM_LIMIT_S = 180.0
"""How long memory may take to come back after a stop. [proposal]"""
RECLAIM_STABLE = 3
_STEADY_BYTES = 512 * MIB
"""Samples that differ by no more stand still: caches move by less. [proposal]"""
ONE_SPARK_NEED_GIB = 114.3
"""0.94 of a Spark's memory: the need of the one-Spark recipe."""

TEST_DEFAULT_BYTES = 256 * MIB
"""Buffer of a test unless another size is asked for."""
TEST_SHARE = 0.05
"""Largest part of MemAvailable that a test's buffer may take."""
TEST_COPIES = 2
"""A collective holds an input and an output: 16 GB took about 32 GB and froze a node."""


class Reclaim(NamedTuple):
    """What samples of MemAvailable after a stop say."""

    verdict: Literal["GO", "WAIT", "FAIL"]
    first_enough: int | None
    """Number, from 1, of the first of the newest unbroken samples that are enough."""
    stable_at: int | None
    """Number of the sample at which enough memory had stood still."""


def reclaim(
    available_bytes: Sequence[float], need_bytes: float, *, period_s: float = RECLAIM_PERIOD_S
) -> Reclaim:
    """Whether a launch may start: enough memory, standing still for three samples.

    available_bytes: MemAvailable in order of time, ``period_s`` apart. No sample yet is WAIT.
    FAIL: 180 s of samples without it.
    """
    first: int | None = None
    for number, value in enumerate(available_bytes, 1):
        if value < need_bytes:
            first = None
            continue
        first = number if first is None else first
        newest = available_bytes[max(first, number - RECLAIM_STABLE + 1) - 1 : number]
        if len(newest) == RECLAIM_STABLE and max(newest) - min(newest) <= _STEADY_BYTES:
            return Reclaim("GO", first, number)
    late = (len(available_bytes) - 1) * period_s >= RECLAIM_LIMIT_S
    return Reclaim("FAIL" if late else "WAIT", first, None)


def load_refusal(
    size_bytes: int | None, available_bytes: int | None, *, engine_runs: bool = False
) -> str | None:
    """Why a test with a buffer of this size must not run; None = it may.

    size_bytes: None = the default of 256 MiB.
    available_bytes: MemAvailable of the tightest node; None = unknown, which is refused.
    """
    size = TEST_DEFAULT_BYTES if size_bytes is None else size_bytes
    if engine_runs:
        return "an engine runs on this node, and a test would take its memory"
    if available_bytes is None:
        return "MemAvailable is unknown"
    need = TEST_COPIES * size
    if need > available_bytes:
        return f"needs about {gib(need)} of {gib(available_bytes)} available"
    cap = TEST_SHARE * available_bytes
    if size > cap:
        return (
            f"a buffer of {size / MIB:.0f} MiB needs about {gib(need)}, and only"
            f" {cap / MIB:.0f} MiB ({TEST_SHARE:.0%} of {gib(available_bytes)} available) are safe"
        )
    return None


_TEST = re.compile(r"--bandwidth\b|\w+_perf\b|ib_(?:write|read|send)_bw|--load\b")
_SIZE = re.compile(
    r"(?:--size|--maxbytes|--max-bytes|--bytes|(?<!\S)-e)[= ]"
    r"(\d{1,15}(?:\.\d{1,6})?(?:[kmgtKMGT](?:i?[bB])?|[bB])?)(?!\S)"
)


def _too_big(scene: Scene) -> Iterator[Judgement]:
    for place, request in scene.each(Request):
        line = " ".join(request.argv)
        if not _TEST.search(line):
            continue
        asked = max((parse_bytes(word) for word in _SIZE.findall(line)), default=None)
        memories = [(p, m) for p, m in scene.each(Meminfo) if m.available_bytes is not None]
        tightest = min(memories, key=lambda one: one[1].available_bytes or 0, default=None)
        node = place if tightest is None else tightest[0]
        available = None if tightest is None else tightest[1].available_bytes
        engines = list(_engines(scene))
        refused = load_refusal(asked, available, engine_runs=bool(engines))
        node = engines[0] if engines else node
        size = TEST_DEFAULT_BYTES if asked is None else asked
        if refused is None:
            yield passed(node, f"a test of {size / MIB:.0f} MiB fits")
            continue
        cap = 256 if available is None else int(TEST_SHARE * available) // MIB
        yield Judgement(
            node, "unknown" if available is None else "fail", refused,
            f"at most {TEST_SHARE:.0%} of MemAvailable, by default 256 MiB",
            fix=f"sparkserve doctor --bandwidth --size {min(256, cap)}M",
            verdict="REFUSE", evidence=shown(scene, node, Meminfo, Request),
        )  # fmt: skip


def _engines(scene: Scene) -> Iterator[str | None]:
    """Places on which an engine runs."""
    yield from (place for place in scene.facts if run_on(scene, place) is not None)
    for place, listed in scene.each(Containers):
        if any(one.status == "running" and is_serving(one) for one in listed.containers):
            yield place


def _reclaimed(scene: Scene) -> Iterator[Judgement]:
    for place, samples in scene.each(MemorySamples):
        values = [value * GIB for value in samples.available_gib]
        if not _after_stop(scene, place, values):
            continue
        need_gib, said = _need(scene, place)
        kib = round(need_gib * GIB / KIB)
        period = samples.period_s or RECLAIM_PERIOD_S
        found = reclaim(values, need_gib * GIB, period_s=period)
        told = f"need {need_gib:.1f} GiB = {kib} kB ({said})"
        if found.verdict == "GO":
            yield Judgement(
                place, "pass",
                f"{told}: first enough at sample {found.first_enough}, stable for"
                f" {RECLAIM_STABLE} at sample {found.stable_at}", verdict="GO",
            )  # fmt: skip
            continue
        newest = gib(values[-1])
        yield Judgement(
            place, "fail", f"{told}: {newest} at sample {len(values)}",
            f"enough memory that stands still for {RECLAIM_STABLE} samples within"
            f" {RECLAIM_LIMIT_S:.0f} s",
            severity="error" if found.verdict == "FAIL" else "warning",
            verdict=found.verdict, evidence=shown(scene, place, MemorySamples),
        )  # fmt: skip


def _after_stop(scene: Scene, place: str | None, values: Sequence[float]) -> bool:
    """Whether the samples follow a stop: the container is gone, or the memory comes back."""
    if len(values) > 1 and values[-1] < values[0]:
        return False
    listed = scene.near(place, Containers)
    gone = listed is not None and any(
        one.status in ("exited", "dead", "removing") for one in listed.containers
    )
    return gone or (len(values) > 1 and values[-1] - values[0] > _STEADY_BYTES)


def _need(scene: Scene, place: str | None) -> tuple[float, str]:
    """GiB that must be available, and who says so."""
    if scene.wish is not None:
        return scene.wish.limits.start_memory_gib, "by the profile"
    wanted = scene.wanted
    if wanted.start_memory_gib is not None:
        return wanted.start_memory_gib, "by the profile"
    memory = scene.near(place, Meminfo)
    if wanted.mem_fraction is not None:
        total = (memory.total_bytes if memory else None) or 121.63 * GIB
        return wanted.mem_fraction * total / GIB, f"{wanted.mem_fraction} of all memory"
    return ONE_SPARK_NEED_GIB, "of one Spark, as no profile tells"


CHECKS: tuple[Check, ...] = (
    Check(
        "MEM.TEST", "MEM_TEST_TOO_BIG", "a test's buffers fit beside everything else",
        ("doctor",), "error", "memory", (Request,), _too_big,
        why="a collective holds about twice its size in the one pool of memory; 16 GB froze a node",
        fix="ask for a smaller test: sparkserve doctor --bandwidth --size 256M",
        symptom="The documented NCCL validation with 16 GB freezes a node until a power cycle.",
        text_only="the size comes with the command that asks for the test",
    ),
    Check(
        "MEM.RECLAIM", "MEM_NOT_RECLAIMED_YET", "memory has come back after a stop",
        ("launch",), "warning", "memory", (MemorySamples,), _reclaimed,
        why="a container's exit and the driver's return of its memory are different events",
        fix="wait until MemAvailable is enough and stands still for three looks, 2 s apart",
        symptom="The old container is gone, and the new one dies in its first CUDA call; a minute"
        " later the same command works.",
        text_only="it takes samples over time after a stop, and doctor looks once",
    ),
)  # fmt: skip
