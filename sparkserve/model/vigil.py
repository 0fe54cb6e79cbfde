"""When a serving engine is wedged and when memory runs out: rules over samples, nothing else.

The guard on a node applies them to what it measures, the checks to what a user pastes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from sparkserve.model.base import Model

WedgeAction = Literal["off", "report", "stop"]
"""What a guard does about a wedge: not look, say it in state and status, or stop the run."""
PRELOAD_FLOOR_GIB = 16.0
FALL_GIB_PER_S = 2.0
FALL_BELOW_GIB = 20.0
"""Memory guard of case ENG_GRAPH_CAPTURE_FAILED. Healthy starts are known that go below 10 GiB, so
a profile must ask for it."""

RUNNING_GAUGES = ("num_running_reqs", "num_requests_running", "num_running_requests")
TOKEN_COUNTERS = ("generation_tokens_total", "generated_tokens_total")
WORK_COUNTERS = (
    "realtime_tokens_total", "prompt_tokens_total", "prefill_tokens_total", "num_requests_total",
    "request_success_total",
)  # fmt: skip
"""Ends of the names that SGLang and vLLM give them, read in SGLang 0.5.23: its
``generation_tokens_total`` counts a request's tokens when the request ends, its
``realtime_tokens_total`` counts every step."""


class WedgeRule(Model):
    """When an engine that looks busy counts as wedged (case ENG_SPIN_WEDGE)."""

    after_s: float = Field(default=60.0, gt=0)
    """For how long no token may come while requests run."""
    power_w: float = Field(default=30.0, gt=0)
    """A GB10 that computes draws more, one that spins about 20 W; chosen from reports, to be tuned
    on real nodes."""
    utilization_percent: float = Field(default=80.0, ge=0, le=100)
    """Use of the GPU above which it claims to be busy."""

    def is_idle_power(self, gpu: GpuLook) -> bool:
        """Whether the GPU claims to be busy at a power at which nothing is computed.

        An unknown figure is never that: a long prefill freezes an engine's counters too and is told
        apart by its power alone.
        """
        if gpu.power_w is None or gpu.utilization_percent is None:
            return False
        return gpu.power_w < self.power_w and gpu.utilization_percent > self.utilization_percent


class EngineLook(Model):
    """What an engine's counters said at one moment; None = it does not count this."""

    at_s: float
    running: float | None
    """Requests that it works on."""
    generated: float | None
    """Tokens generated since it began, as far as it counts them while they come."""
    others: tuple[float, ...] = ()
    """Further counters that grow with work, such as prompt tokens worked off."""


class GpuLook(Model):
    """What the GPU said at one moment; None = ``[N/A]``."""

    at_s: float
    utilization_percent: float | None
    power_w: float | None


class Wedge(Model):
    """A wedge, with the figures that show it."""

    frozen_s: float
    running: float
    generated: float
    power_w: float
    """The highest power while it was frozen."""
    utilization_percent: float
    """The lowest use while it was frozen."""

    def __str__(self) -> str:
        return (
            f"{self.running:.0f} requests run, no token came for {self.frozen_s:.0f} s "
            f"(counter {self.generated:.0f}), and the GPU is {self.utilization_percent:.0f} % busy "
            f"at {self.power_w:.2f} W"
        )


@dataclass(frozen=True)
class Frozen:
    """Looks at an engine during which it got nowhere."""

    since_s: float
    until_s: float
    running: float
    generated: float

    @property
    def for_s(self) -> float:
        """How long that is."""
        return self.until_s - self.since_s


def frozen(looks: Sequence[EngineLook]) -> Frozen | None:
    """The newest stretch of looks with requests running and all counters standing still.

    None where the newest look shows no running request or no counter, or fewer than two looks
    belong to the stretch.
    """
    if not looks:
        return None
    newest = looks[-1]
    if not newest.running or newest.generated is None:
        return None
    since = newest
    for look in reversed(looks):
        moved = look.generated != newest.generated or look.others != newest.others
        if moved or not look.running:
            break
        since = look
    if since is newest:
        return None
    return Frozen(since.at_s, newest.at_s, newest.running, newest.generated)


def wedge(
    still: Frozen | None, gpu: Sequence[GpuLook], rule: WedgeRule | None = None
) -> Wedge | None:
    """A wedge: frozen for long enough, busy, and at the power of an idle GPU all the while.

    gpu: looks of one GPU during that time; without one it is no wedge.
    """
    rule = rule or WedgeRule()
    if still is None or still.for_s < rule.after_s or not gpu:
        return None
    if not all(rule.is_idle_power(look) for look in gpu):
        return None
    return Wedge(
        frozen_s=still.for_s, running=still.running, generated=still.generated,
        power_w=max(look.power_w or 0.0 for look in gpu),
        utilization_percent=min(look.utilization_percent or 0.0 for look in gpu),
    )  # fmt: skip


class MemoryRule(Model):
    """When a start is ended because memory runs out; 0 everywhere = never."""

    floor_gib: float = Field(default=0.0, ge=0)
    """Stop below it."""
    fall_gib_per_s: float = Field(default=0.0, ge=0)
    """Stop when memory falls faster than this and less than ``fall_below_gib`` is left."""
    fall_below_gib: float = Field(default=0.0, ge=0)

    @property
    def is_on(self) -> bool:
        """Whether it may ever stop anything."""
        return self.floor_gib > 0 or self.fall_gib_per_s > 0

    def why(self, before_gib: float | None, now_gib: float, period_s: float) -> str | None:
        """Why this sample ends the start; None where it does not.

        before_gib: the sample ``period_s`` before; None = this is the first.
        """
        if now_gib < self.floor_gib:
            return f"MemAvailable {now_gib:.2f} GiB is below the floor of {self.floor_gib:g} GiB"
        if before_gib is None or not self.fall_gib_per_s or now_gib >= self.fall_below_gib:
            return None
        fall_gib_per_s = (before_gib - now_gib) / period_s
        if fall_gib_per_s <= self.fall_gib_per_s:
            return None
        return (
            f"MemAvailable {now_gib:.2f} GiB falls by {fall_gib_per_s:.1f} GiB/s "
            f"(more than {self.fall_gib_per_s:g} with less than {self.fall_below_gib:g} GiB left)"
        )


CASE_RULE = MemoryRule(
    floor_gib=PRELOAD_FLOOR_GIB, fall_gib_per_s=FALL_GIB_PER_S, fall_below_gib=FALL_BELOW_GIB
)
"""What the reports' own guard does."""


def first_stop(
    samples_gib: Sequence[float], period_s: float, rule: MemoryRule = CASE_RULE
) -> tuple[int, str] | None:
    """(place, why) of the first sample at which the rule stops; None where it never does."""
    before: float | None = None
    for place, now in enumerate(samples_gib):
        if why := rule.why(before, now, period_s):
            return place, why
        before = now
    return None
