"""What nvidia-smi says, in all its forms; [N/A] and a missing tool stay unknown."""

from __future__ import annotations

from typing import TypeVar

import pytest

from sparkserve.facts.gpu import (
    NO_ANSWER,
    NO_TOOL,
    DrmSettings,
    GpuDriver,
    GpuProcess,
    GpuProcesses,
    Gpus,
    GpuSample,
    GpuSamples,
    ProcessOwner,
    ProcessOwners,
)
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.reader import Fact, understand
from sparkserve.facts.registry import READERS
from sparkserve.model.facts import Unobserved
from sparkserve.model.reading import Reading

F = TypeVar("F", bound=Fact)

TABLE = """\
| NVIDIA-SMI 580.173.02             Driver Version: 580.95.05      CUDA Version: 13.0     |
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   46C    P0             14W /  N/A  | Not Supported          |     96%      Default |
|    0   N/A  N/A            2213      G   /usr/lib/xorg/Xorg                       43MiB |
|    0   N/A  N/A           21951      C   VLLM::EngineCore                     104277MiB |
"""
FULL = """\
==============NVSMI LOG==============
Driver Version                            : 580.173.02
GPU 0000000F:01:00.0
    Product Name                          : NVIDIA GB10
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
    FB Memory Usage
        Total                             : N/A
    Utilization
        GPU                               : 96 %
    Temperature
        GPU Current Temp                  : 46 C
    GPU Power Readings
        Average Power Draw                : 14.10 W
    Clocks
        SM                                : 507 MHz
    Max Clocks
        SM                                : 3003 MHz
"""
DMON = """\
# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk
# Idx      W      C      C      %      %    MHz    MHz
    0     14     46      -     96      0      -    507
    0     15     47      -     95      0      -    513
"""


def read(text: str, command: str, rc: int | None = None) -> list[Fact | Unobserved]:
    result = understand([Reading(text=text, command=command, rc=rc)], READERS)
    assert result.unread == ()
    return [observation.fact for observation in result.observations]


def only(kind: type[F], facts: list[Fact | Unobserved]) -> F:
    (found,) = (fact for fact in facts if isinstance(fact, kind))
    return found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "--query-gpu=utilization.gpu,clocks.sm,power.draw --format=csv,noheader,nounits",
            "96, 507, 14.10\n",
        ),
        (
            "--format=csv,noheader --query-gpu=power.draw,utilization.gpu,clocks.sm",
            "14.10 W, 96 %, 507 MHz\n",
        ),
        (
            "--query-gpu=clocks.current.sm,power.draw.instant,utilization.gpu --format=csv -l 5",
            "clocks.current.sm [MHz], power.draw.instant [W], utilization.gpu [%]\n"
            "507 MHz, 14.10 W, 96 %\n",
        ),
    ],
)
def test_columns_are_taken_from_the_command_and_units_do_not_matter(
    options: str, text: str
) -> None:
    facts = read(text, f"nvidia-smi {options}")
    assert only(GpuSamples, facts).samples == (
        GpuSample(utilization_percent=96, sm_clock_mhz=507, power_w=14.1),
    )


def test_not_available_is_none() -> None:
    facts = read(
        "NVIDIA GB10, [N/A], [Not Supported], [N/A]\n",
        "nvidia-smi --query-gpu=name,memory.total,memory.used,power.draw --format=csv,noheader",
    )
    (sample,) = only(GpuSamples, facts).samples
    assert sample == GpuSample(name="NVIDIA GB10", asked_memory=True)
    assert only(Gpus, facts).names == ("NVIDIA GB10",)


def test_equal_samples_are_all_kept() -> None:
    line = "96, 507\n"
    command = "nvidia-smi --query-gpu=utilization.gpu,clocks.sm --format=csv,noheader,nounits"
    first = only(GpuSamples, read(line * 3, command))
    assert len(first.samples) == 3
    assert len(first.merged(first).samples) == 6


@pytest.mark.parametrize(
    ("column", "cell", "bits"),
    [
        ("clocks_event_reasons.active", "0x0000000000000001", 1),
        ("clocks_throttle_reasons.active", "0x0000000000000060", 0x60),
        ("clocks_event_reasons.sw_power_cap", "Active", 4),
        ("clocks_event_reasons.sw_power_cap", "Not Active", 0),
        ("clocks_event_reasons.active", "[N/A]", None),
    ],
)
def test_reasons_are_bits(column: str, cell: str, bits: int | None) -> None:
    facts = read(f"96, {cell}\n", f"nvidia-smi --query-gpu=utilization.gpu,{column} --format=csv")
    assert only(GpuSamples, facts).samples[0].reasons == bits


def test_table_for_people_gives_processes_driver_and_load() -> None:
    facts = read(TABLE, "nvidia-smi")
    assert only(GpuProcesses, facts).processes == (
        GpuProcess(pid=2213, name="/usr/lib/xorg/Xorg", used_bytes=43 << 20),
        GpuProcess(pid=21951, name="VLLM::EngineCore", used_bytes=104277 << 20),
    )
    assert only(HostVersions, facts) == HostVersions(
        driver_userland="580.173.02", driver_module="580.95.05"
    )
    assert only(GpuDriver, facts).cuda == "13.0"
    assert only(GpuSamples, facts).samples[0].utilization_percent == 96


def test_long_form_and_dmon_give_samples() -> None:
    full = only(GpuSamples, read(FULL, "nvidia-smi -q -d CLOCK,POWER")).samples
    assert full == (
        GpuSample(utilization_percent=96, sm_clock_mhz=507, max_sm_clock_mhz=3003, power_w=14.1,
                  temperature_c=46, pstate="P0", reasons=4),
    )  # fmt: skip
    dmon = only(GpuSamples, read(DMON, "nvidia-smi dmon -c 2")).samples
    assert [sample.sm_clock_mhz for sample in dmon] == [507, 513]
    assert dmon[1].temperature_c == 47


def test_processes_with_unknown_use_are_kept_unknown() -> None:
    facts = read(
        "pid, process_name, used_gpu_memory [MiB]\n21951, python3, [N/A]\n",
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
    )
    assert only(GpuProcesses, facts).processes == (GpuProcess(pid=21951, name="python3"),)


def test_no_process_is_an_answer() -> None:
    facts = read("", "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader")
    assert only(GpuProcesses, facts) == GpuProcesses()


@pytest.mark.parametrize("command", ["nvidia-smi", "nvidia-smi -L", "nvidia-smi -q"])
def test_missing_tool_and_missing_answer_are_told(command: str) -> None:
    missing = read("sh: 1: nvidia-smi: not found\n", command, rc=127)
    assert missing == [Gpus(problem=NO_TOOL)]
    assert read("", command, rc=124) == [Gpus(problem=NO_ANSWER)]


def test_mismatch_of_module_and_libraries_is_told_with_the_libraries_version() -> None:
    facts = read(
        "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 580.173\n",
        "nvidia-smi",
        rc=18,
    )
    mismatch = only(GpuDriver, facts).mismatch
    assert mismatch is not None
    assert "mismatch" in mismatch
    assert only(HostVersions, facts).driver_userland == "580.173"


def test_owner_of_a_process_is_its_container() -> None:
    container = "97" * 32
    facts = read(f"0::/system.slice/docker-{container}.scope\n", "cat /proc/21951/cgroup")
    assert only(ProcessOwners, facts).owners == (ProcessOwner(pid=21951, container=container),)
    bare = read("0::/user.slice/user-1000.slice/session-3.scope\n", "cat /proc/21951/cgroup")
    assert only(ProcessOwners, bare).owners == (ProcessOwner(pid=21951),)


def test_settings_of_the_display_are_read_from_their_files() -> None:
    both = (
        "/sys/module/nvidia_drm/parameters/modeset:Y\n/sys/module/nvidia_drm/parameters/fbdev:N\n"
    )
    facts = read(both, "grep . /sys/module/nvidia_drm/parameters/*")
    assert only(DrmSettings, facts) == DrmSettings(modeset=True, fbdev=False)


def test_query_that_the_driver_does_not_know_is_not_observed() -> None:
    facts = read('Field "x" is not a valid field to query.\n\n',
                 "nvidia-smi --query-gpu=utilization.gpu,clocks.sm --format=csv", rc=2)  # fmt: skip
    assert [type(fact) for fact in facts] == [Unobserved]
