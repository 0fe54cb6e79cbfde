"""When a serving engine is wedged and when memory runs out: rules over samples, nothing else.

The guard on a node applies them to what it measures, the checks to what a user pastes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from sparkserve.model.base import Model

WEDGE_FROZEN_S = 60.0
"""For how long no token may come while requests run (case ENG_SPIN_WEDGE)."""
WEDGE_POWER_W = 30.0
"""A GB10 that computes draws more; one that spins draws about 20 (case ENG_SPIN_WEDGE; chosen for
the set of cases, to be tuned on real nodes)."""
WEDGE_UTILIZATION_PERCENT = 80.0
PRELOAD_FLOOR_GIB = 16.0
FALL_GIB_PER_S = 2.0
FALL_BELOW_GIB = 20.0
"""Memory guard of case ENG_GRAPH_CAPTURE_FAILED. Healthy starts are known that go below 10 GiB, so
a profile must ask for it."""


class EngineLook(Model):
    """What an engine's counters said at one moment; None = it does not count this."""

    at_s: float
    running: float | None
    """Requests that it works on."""
    generated: float | None
    """Tokens generated since it began."""
    prefilled: float | None = None
    """Prompt tokens worked off since it began."""


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
        moved = look.generated != newest.generated or look.prefilled != newest.prefilled
        if moved or not look.running:
            break
        since = look
    if since is newest:
        return None
    return Frozen(since.at_s, newest.at_s, newest.running, newest.generated)


def wedge(still: Frozen | None, gpu: Sequence[GpuLook]) -> Wedge | None:
    """A wedge: frozen for ``WEDGE_FROZEN_S``, busy, and at a power at which nothing is computed.

    gpu: looks of one GPU during that time. Without one, or with an unknown figure, it is no wedge:
        a long prefill freezes the counters too and is told apart by its power alone.
    """
    if still is None or still.for_s < WEDGE_FROZEN_S or not gpu:
        return None
    powers = [look.power_w for look in gpu if look.power_w is not None]
    uses = [look.utilization_percent for look in gpu if look.utilization_percent is not None]
    if len(powers) < len(gpu) or len(uses) < len(gpu):
        return None
    if max(powers) >= WEDGE_POWER_W or min(uses) <= WEDGE_UTILIZATION_PERCENT:
        return None
    return Wedge(
        frozen_s=still.for_s, running=still.running, generated=still.generated,
        power_w=max(powers), utilization_percent=min(uses),
    )  # fmt: skip


class MemoryRule(Model):
    """When a start is ended because memory runs out; 0 everywhere = never."""

    floor_gib: float = Field(default=0.0, ge=0)
    """Stop below it."""
    fall_gib_per_s: float = Field(default=0.0, ge=0)
    """Stop when memory falls faster than this and less than ``fall_below_gib`` is left."""
    fall_below_gib: float = Field(default=0.0, ge=0)

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
