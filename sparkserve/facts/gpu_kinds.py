"""What nvidia-smi may say, as kinds of fact: samples, processes and their owners, the driver."""

from __future__ import annotations

from typing import Self

from sparkserve.facts.reader import Fact
from sparkserve.model.base import Model


class GpuSample(Model):
    """One look at one GPU; None = not asked, or ``[N/A]``."""

    name: str | None = None
    utilization_percent: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    pstate: str | None = None
    reasons: int | None = None
    """Bits of the reasons why the clock is not higher."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    asked_memory: bool = False
    """Whether the query had a column of memory, answered or not."""


class GpuSamples(Fact):
    """Looks at the GPU in order of time."""

    samples: tuple[GpuSample, ...] = ()

    def merged(self, other: Self) -> Self:
        """One after the other, repeats kept: a figure that stands still is a figure."""
        return self.model_copy(update={"samples": self.samples + other.samples})


class GpuProcess(Model):
    """One process that holds memory of the GPU."""

    pid: int
    name: str
    used_bytes: int | None = None
    """None = ``[N/A]``."""


class GpuProcesses(Fact):
    """What the host's nvidia-smi lists; inside a container the list is empty and says nothing."""

    processes: tuple[GpuProcess, ...] = ()


class ProcessOwner(Model):
    """Whose a process is."""

    pid: int
    parent: int | None = None
    container: str | None = None
    """Id of its container, as far as ``/proc/PID/cgroup`` names one."""
    user: str | None = None


class ProcessOwners(Fact):
    """Owners of the processes on the GPU."""

    owners: tuple[ProcessOwner, ...] = ()


class Gpus(Fact):
    """Which GPUs there are."""

    names: tuple[str, ...] = ()
    problem: str | None = None
    """What nvidia-smi said instead of listing any."""


class GpuDriver(Fact):
    """What nvidia-smi says of the driver."""

    cuda: str | None = None
    """Newest CUDA version that the driver runs."""
    mismatch: str | None = None
    """The sentence that says that the loaded module is not that of the libraries."""


class DrmSettings(Fact):
    """Parameters of the module nvidia_drm."""

    modeset: bool | None = None
    fbdev: bool | None = None


REASONS = {
    "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8,
    "sync_boost": 0x10, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80, "display_clock_setting": 0x100,
}  # fmt: skip
"""Bits of ``clocks_event_reasons.active`` by the name of their own column."""
