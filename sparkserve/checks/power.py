"""Power states of the GPU: clocks under load, heat, and a steady piece of work over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import shown
from sparkserve.checks.scene import Scene
from sparkserve.facts.baseline import NodeBaseline
from sparkserve.facts.gpu import REASONS, GpuSample, GpuSamples
from sparkserve.facts.samples import CanarySamples

_LOADED_PERCENT = 80
_USUAL_MHZ = 2418
"""Clock of a GB10 under load."""
_LOWEST_MHZ = max(1000.0, _USUAL_MHZ / 2)
_COOL_C = 75
_HOT_C = 85
"""Nodes at 91 degrees switched themselves off; a cap of the clocks gave 65. [proposal]"""
_SAMPLES = 2
"""One look may fall into a pause; two in a row are a state. [proposal]"""
_SLOW_STATE = 1.4
_NODES_DIFFER = 1.3
_NEWEST = 3
_ON_PURPOSE = REASONS["applications_clocks_setting"]
_IDLE = REASONS["gpu_idle"]


def _loaded(samples: Sequence[GpuSample]) -> list[GpuSample]:
    """Looks at a GPU that works; a sample without its clock says nothing."""
    return [
        sample
        for sample in samples
        if (sample.utilization_percent or 0) >= _LOADED_PERCENT and sample.sm_clock_mhz is not None
    ]


def _clock(scene: Scene) -> Iterator[Judgement]:
    for place, gpu in scene.each(GpuSamples):
        working = _loaded(gpu.samples)
        if not working:
            if any(sample.sm_clock_mhz is not None for sample in gpu.samples):
                yield passed(place, "idle: its clocks say nothing")
            continue
        clock = median(sample.sm_clock_mhz or 0 for sample in working)
        told = f"{clock:.0f} MHz at {_percent(working)} %{_with(working)}"
        reasons = _reasons(working)
        if clock >= _LOWEST_MHZ:
            yield passed(place, told)
        elif reasons is not None and reasons & _ON_PURPOSE:
            yield passed(place, f"{told}: capped on purpose")
        elif len(working) < _SAMPLES:
            yield Judgement(
                place, "unknown", f"{told}: one look does not show that it lasts",
                fix="look again under load for 10 s", evidence=shown(scene, place, GpuSamples),
            )  # fmt: skip
        elif _is_hot(working) or (reasons is not None and reasons & ~_IDLE):
            yield Judgement(
                place, "fail", told, f"at least {_LOWEST_MHZ:.0f} MHz under load", code="PWR_HOT",
                severity="warning", why="the GPU slows itself down for its heat or its supply",
                fix="more room for air; sudo nvidia-smi -lgc 0,2000; the original 240 W supply",
                evidence=shown(scene, place, GpuSamples),
            )  # fmt: skip
        else:
            yield Judgement(
                place, "fail", told,
                f"at least {_LOWEST_MHZ:.0f} MHz under load, usually {_USUAL_MHZ}",
                evidence=shown(scene, place, GpuSamples),
            )  # fmt: skip


def _percent(working: Sequence[GpuSample]) -> str:
    return f"{median(sample.utilization_percent or 0 for sample in working):.0f}"


def _with(working: Sequence[GpuSample]) -> str:
    """What tells this state from others: power, temperature, reasons."""
    power = [s.power_w for s in working if s.power_w is not None]
    warmth = [s.temperature_c for s in working if s.temperature_c is not None]
    reasons = _reasons(working)
    parts = [f"{len(working)} sample{'s' if len(working) > 1 else ''}"]
    parts += [f"{median(power):.1f} W"] if power else []
    parts += [f"{max(warmth):.0f} C"] if warmth else []
    parts += ["reasons unknown" if reasons is None else f"reasons {reasons:#x}"]
    return f" ({', '.join(parts)})"


def _reasons(working: Sequence[GpuSample]) -> int | None:
    known = [sample.reasons for sample in working if sample.reasons is not None]
    if not known:
        return None
    bits = 0
    for one in known:
        bits |= one
    return bits


def _is_hot(working: Sequence[GpuSample]) -> bool:
    warmth = [s.temperature_c for s in working if s.temperature_c is not None]
    return bool(warmth) and median(warmth) >= _COOL_C


def _heat(scene: Scene) -> Iterator[Judgement]:
    for place, gpu in scene.each(GpuSamples):
        warmth = [s.temperature_c for s in gpu.samples if s.temperature_c is not None]
        if not warmth:
            continue
        if max(warmth) < _HOT_C:
            yield passed(place, f"{max(warmth):.0f} C")
        else:
            yield Judgement(
                place, "fail", f"{max(warmth):.0f} C", f"below {_HOT_C} C",
                evidence=shown(scene, place, GpuSamples),
            )  # fmt: skip


def _canary(scene: Scene) -> Iterator[Judgement]:
    currents: dict[str, float] = {}
    for place, canary in scene.each(CanarySamples):
        if not canary.ms:
            continue
        current = median(canary.ms[-_NEWEST:])
        best = _best(scene, place, canary)
        if place is not None:
            currents[place] = current
        if best <= 0:
            continue
        ratio = current / best
        told = f"current {current:.1f} ms / best {best:g} ms = {ratio:.2f}"
        if ratio > _SLOW_STATE:
            slow = sum(1 for value in canary.ms if value > _SLOW_STATE * best)
            shape = "bimodal, " if 0 < slow < len(canary.ms) else ""
            yield Judgement(
                place, "fail", f"{shape}{told}", f"at most {_SLOW_STATE} times its best",
                evidence=shown(scene, place, CanarySamples),
            )  # fmt: skip
        else:
            yield passed(place, told)
    yield from _unequal(currents)


def _best(scene: Scene, place: str | None, canary: CanarySamples) -> float:
    baseline = scene.of(place, NodeBaseline)
    told = [
        value
        for value in (canary.best_known_ms, baseline.best_canary_ms if baseline else None)
        if value is not None
    ]
    # Without a record the fastest of these samples is the best that is known.
    return min(told) if told else min(canary.ms)


def _unequal(currents: dict[str, float]) -> Iterator[Judgement]:
    if len(currents) < 2:
        return
    fastest = min(currents, key=lambda place: currents[place])
    for place, value in currents.items():
        if currents[fastest] > 0 and value / currents[fastest] > _NODES_DIFFER:
            yield Judgement(
                place, "fail",
                f"{value:.1f} ms, {fastest} takes {currents[fastest]:.1f} ms"
                f" = {value / currents[fastest]:.2f}",
                f"nodes within {_NODES_DIFFER} of each other",
                why="one slow rank slows all of them",
            )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    Check(
        "PWR.CLOCK", "PWR_CLOCK_STUCK", "the GPU clocks up under load",
        ("doctor", "watch"), "error", "hardware", (GpuSamples,), _clock,
        why="the platform is in a low-power state although nothing reports a limit; a reboot and"
        " nvidia-smi -lgc do not clear it",
        fix="shut the node down, unplug the supply from wall and box for 60 s, start it with the"
        " original 240 W supply; if it stays, ask for a replacement",
        symptom="Half the speed at P0 and 96 % utilisation, cool, 14 to 20 W.",
        also=("PWR_HOT",),
    ),
    Check(
        "PWR.HEAT", "PWR_HOT", "the GPU is not near its limit of heat",
        ("doctor", "watch"), "warning", "hardware", (GpuSamples,), _heat,
        why="hot nodes switch themselves off under load",
        fix="more room for air; sudo nvidia-smi -lgc 0,2000",
        symptom="A node switches itself off in the middle of a load.",
    ),
    Check(
        "PWR.CANARY", "PWR_HIDDEN_SLOW_STATE", "a steady piece of work takes its usual time",
        ("doctor", "watch"), "warning", "hardware", (CanarySamples,), _canary,
        why="nodes flip between two states that nvidia-smi does not show; the cause is unknown",
        fix="measure again before a regression is blamed on software; a cold start of the node"
        " may clear it",
        symptom="Decode flips between two times per step, with nvidia-smi the same in both.",
        text_only="it puts load on the GPU, which a plain doctor never does",
    ),
)  # fmt: skip
