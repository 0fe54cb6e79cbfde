"""What nvidia-smi prints for people: its table, ``dmon``, ``-q``, and its complaints."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.facts.gpu_kinds import (
    REASONS,
    GpuDriver,
    GpuProcess,
    GpuProcesses,
    Gpus,
    GpuSample,
    GpuSamples,
)
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Fact
from sparkserve.model.reading import Reading
from sparkserve.units import MIB

NO_TOOL = "no nvidia-smi"
NO_ANSWER = "nvidia-smi did not return within its time limit"
_TROUBLE = re.compile(
    r"(?im)^.*(?:No devices (?:were )?found|NVIDIA-SMI has failed|Failed to initialize NVML"
    r"|Unable to determine the device handle|GPU is lost).*$"
)
_MISMATCH = re.compile(r"(?im)^.*Driver/library version mismatch.*$")
_MISSING = re.compile(r"nvidia-smi: (?:command )?not found|No such file or directory")


def _trouble(text: str) -> Iterator[Fact]:
    """What nvidia-smi says instead of an answer."""
    if found := _MISMATCH.search(text):
        library = re.search(r"NVML library version: (\d{3}(?:\.\d+)+)", text)
        yield GpuDriver(mismatch=found[0].strip())
        if library:
            yield HostVersions(driver_userland=library[1])
    if found := _TROUBLE.search(text):
        yield Gpus(problem=found[0].strip())


def told(reading: Reading) -> list[Fact]:
    """What nvidia-smi said instead of an answer: no such tool, no answer, a fault; else nothing."""
    if reading.rc == 127 or _MISSING.search(reading.text):
        return [Gpus(problem=NO_TOOL)]
    if reading.rc in (124, 137):
        return [Gpus(problem=NO_ANSWER)]
    return list(_trouble(reading.text))


def number_of(word: str) -> float | None:
    """The number of a cell, with or without its unit; ``[N/A]`` and its like are None."""
    match = re.fullmatch(r"(-?\d{1,12}(?:\.\d{1,6})?)(?: ?(?:%|MHz|W|MiB|C))?", word)
    return float(match[1]) if match else None


_HEADER = re.compile(
    r"NVIDIA-SMI (\S+) .*?(?:Driver Version|KMD Version): (\S+)(?:.*?CUDA Version: (\S+))?"
)
_LOAD = re.compile(
    r"\|\s*\S+\s+(\d+|N/A)C?\s+(P\d+)\s+(\d+|N/A)\s?W?\s*/\s*\S+\s?W?\s*\|[^|]*\|\s*(\d+|N/A)\s?%?\s"
)
_ROW = re.compile(r"\|\s+\d+\s+\S+\s+\S+\s+(\d{1,9})\s+\S+\s+(\S.*?)\s+(\d+)\s?MiB\s*\|")
_NAME = re.compile(r"\|\s+\d+\s+(NVIDIA \S+)\s")


def table(reading: Reading) -> list[Fact]:
    """The table that ``nvidia-smi`` prints without options."""
    if trouble := told(reading):
        return trouble
    facts: list[Fact] = []
    if header := _HEADER.search(reading.text):
        cuda = header[3].rstrip("|") if header[3] else None
        facts += [
            HostVersions(driver_userland=header[1], driver_module=header[2]),
            GpuDriver(cuda=cuda),
        ]
    if names := _NAME.findall(reading.text):
        facts.append(Gpus(names=tuple(names)))
    if loads := _LOAD.findall(reading.text):
        facts.append(GpuSamples(samples=tuple(_load(*cells) for cells in loads)))
    rows = _ROW.findall(reading.text)
    if rows or "No running processes" in reading.text:
        found = (GpuProcess(pid=int(p), name=n, used_bytes=int(m) * MIB) for p, n, m in rows)
        facts.append(GpuProcesses(processes=tuple(found)))
    if not facts:
        raise UnusableOutput("not the table of nvidia-smi")
    return facts


def _load(temperature: str, pstate: str, power: str, utilization: str) -> GpuSample:
    return GpuSample(
        temperature_c=number_of(temperature),
        pstate=pstate,
        power_w=number_of(power),
        utilization_percent=number_of(utilization),
        asked_memory=True,
    )


def dmon(reading: Reading) -> list[Fact]:
    """``nvidia-smi dmon``: a head line of names, then one line per second."""
    heads = [
        line.lstrip("# ").split() for line in reading.text.splitlines() if line.startswith("#")
    ]
    names = next((head for head in heads if "gpu" in head), None)
    if names is None:
        raise UnusableOutput("no head line of dmon")
    own = {"pwr": "power_w", "gtemp": "temperature_c", "sm": "utilization_percent",
           "pclk": "sm_clock_mhz"}  # fmt: skip
    samples = []
    for line in reading.text.splitlines():
        words = line.split()
        if line.startswith("#") or len(words) != len(names):
            continue
        cells = {own[name]: number_of(word) for name, word in zip(names, words, strict=True)
                 if name in own}  # fmt: skip
        samples.append(GpuSample.model_validate(cells))
    if not samples:
        raise UnusableOutput("no line of figures")
    return [GpuSamples(samples=tuple(samples))]


_SECTION = re.compile(r"^(\s*)([A-Z][\w /-]*?)\s*(?:: (.*))?$")
_FIELDS = {
    ("utilization", "gpu"): "utilization_percent",
    ("clocks", "sm"): "sm_clock_mhz",
    ("max clocks", "sm"): "max_sm_clock_mhz",
    ("temperature", "gpu current temp"): "temperature_c",
}  # fmt: skip
_POWER = ("average power draw", "instantaneous power draw", "power draw")
_LONG_REASONS = {
    "idle": "gpu_idle", "applications clocks setting": "applications_clocks_setting",
    "sw power cap": "sw_power_cap", "hw slowdown": "hw_slowdown", "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown", "hw thermal slowdown": "hw_thermal_slowdown",
    "hw power brake slowdown": "hw_power_brake_slowdown",
    "display clock setting": "display_clock_setting",
}  # fmt: skip


def full(reading: Reading) -> list[Fact]:
    """``nvidia-smi -q``: indented sections of ``name : value``."""
    if trouble := told(reading):
        return trouble
    values: dict[str, object] = {}
    reasons: int | None = None
    section = ""
    facts: list[Fact] = []
    for line in reading.text.splitlines():
        match = _SECTION.match(line)
        if match is None:
            continue
        name, value = match[2].strip().lower(), (match[3] or "").strip()
        if not match[3]:
            section = name
            continue
        if name == "driver version":
            facts.append(HostVersions(driver_userland=value))
        elif name == "product name":
            facts.append(Gpus(names=(value,)))
        elif name == "performance state":
            values["pstate"] = value if re.fullmatch(r"P\d{1,2}", value) else None
        elif name in _LONG_REASONS and value in ("Active", "Not Active"):
            bit = REASONS[_LONG_REASONS[name]] if value == "Active" else 0
            reasons = (reasons or 0) | bit
        elif (field := _FIELDS.get((section, name))) is not None:
            values.setdefault(field, number_of(value))
        elif name in _POWER and "power_w" not in values:
            values["power_w"] = number_of(value)
    sample = GpuSample.model_validate(values | {"reasons": reasons})
    if sample != GpuSample():
        facts.append(GpuSamples(samples=(sample,)))
    if not facts:
        raise UnusableOutput("no section of nvidia-smi -q that is known")
    return facts
