"""The GPU by nvidia-smi: clocks, power, temperature, processes; [N/A] stays unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sparkserve.facts.command_form import END, READ, RUN
from sparkserve.facts.gpu_kinds import (
    REASONS,
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
from sparkserve.facts.gpu_text import NO_ANSWER, NO_TOOL, dmon, full, number_of, table, told
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, ask_command
from sparkserve.model.reading import Reading
from sparkserve.units import MIB

_NUMBERS = {
    "utilization.gpu": "utilization_percent",
    "clocks.sm": "sm_clock_mhz", "clocks.current.sm": "sm_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "power.draw": "power_w", "power.draw.instant": "power_w", "power.draw.average": "power_w",
    "temperature.gpu": "temperature_c",
}  # fmt: skip
_SIZES = {
    "memory.total": "memory_total_bytes", "memory.used": "memory_used_bytes",
    "memory.free": "memory_free_bytes",
}  # fmt: skip


def _columns(reading: Reading, option: str) -> list[str]:
    found = re.search(rf"--query-{option}[= ](['\"]?)([\w.,\s-]+?)\1(?= --?\w|\s*\||\s*$)",
                      reading.command or "")  # fmt: skip
    return [name.strip() for name in found[2].split(",")] if found else []


def _rows(text: str, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(columns) or words[0].split(" ")[0] == columns[0]:
            continue
        yield dict(zip(columns, words, strict=True))


def _bits(row: dict[str, str]) -> int | None:
    bits: int | None = None
    for name, word in row.items():
        if not re.match(r"clocks_(?:event|throttle)_reasons\.", name):
            continue
        own = REASONS.get(name.split(".", 1)[1])
        if name.endswith(".active") and re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", word):
            bits = (bits or 0) | int(word, 16)
        elif own is not None and word in ("Active", "Not Active"):
            bits = (bits or 0) | (own if word == "Active" else 0)
    return bits


def _sample(row: dict[str, str]) -> GpuSample:
    values: dict[str, object] = {}
    for name, word in row.items():
        number = number_of(word)
        if number is not None and name in _NUMBERS:
            values[_NUMBERS[name]] = number
        elif number is not None and name in _SIZES:
            values[_SIZES[name]] = round(number * MIB)
        elif name in ("name", "gpu_name") and not word.startswith("["):
            values["name"] = word
        elif name == "pstate" and re.fullmatch(r"P\d{1,2}", word):
            values["pstate"] = word
    return GpuSample.model_validate(
        values | {"reasons": _bits(row), "asked_memory": any(name in _SIZES for name in row)}
    )


def _query(reading: Reading) -> list[Fact]:
    if trouble := told(reading):
        return trouble
    columns = _columns(reading, "gpu")
    rows = list(_rows(reading.text, columns))
    if not rows:
        raise UnusableOutput(f"no row with the {len(columns)} columns that were asked for")
    samples = tuple(_sample(row) for row in rows)
    facts: list[Fact] = [GpuSamples(samples=samples)]
    if names := tuple(dict.fromkeys(s.name for s in samples if s.name)):
        facts.append(Gpus(names=names))
    driver = rows[0].get("driver_version", "")
    if re.fullmatch(r"\d{3}(?:\.\d+)+", driver):
        facts.append(HostVersions(driver_userland=driver))
    return facts


def _apps(reading: Reading) -> list[Fact]:
    if trouble := told(reading):
        return trouble
    columns = _columns(reading, "compute-apps")
    if "pid" not in columns:
        raise UnusableOutput("the query has no column pid")
    found, strange = [], []
    for line in reading.text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if not line.strip() or words[0] in columns or words[0].startswith("No running"):
            continue
        row = dict(zip(columns, words, strict=False))
        if len(words) != len(columns) or not re.fullmatch(r"\d{1,9}", row["pid"]):
            strange.append(line)
            continue
        used = number_of(row.get("used_memory", row.get("used_gpu_memory", "")))
        name = row.get("process_name", row.get("name", ""))
        found.append(
            GpuProcess(
                pid=int(row["pid"]),
                name=name,
                used_bytes=None if used is None else round(used * MIB),
            )
        )
    if strange and not found:
        raise UnusableOutput(f"not a list of processes: {strange[0][:120]}")
    return [GpuProcesses(processes=tuple(found))]


def _list(reading: Reading) -> list[Fact]:
    if trouble := told(reading):
        return trouble
    names = re.findall(r"(?m)^\s*GPU \d+: (.+?)(?: \(UUID: .*)?$", reading.text)
    if not names:
        raise UnusableOutput("no line of a GPU")
    return [Gpus(names=tuple(names))]


_CONTAINER = re.compile(
    r"(?:docker[-/]|libpod-|cri-containerd-|/)([0-9a-f]{64}|[0-9a-f]{12})(?:\.scope)?\b"
)


def _cgroup(reading: Reading) -> Iterable[Fact]:
    pid = re.search(r"/proc/(\d{1,9})/cgroup", reading.source)
    if pid is None or ":" not in reading.text:
        raise UnusableOutput("not the control group of one process")
    container = _CONTAINER.search(reading.text)
    owner = ProcessOwner(pid=int(pid[1]), container=container[1] if container else None)
    yield ProcessOwners(owners=(owner,))


def _owners(reading: Reading) -> Iterable[Fact]:
    """The answer of our own script: a line ``pid ppid user cgroup`` per process."""
    found = []
    for line in reading.text.splitlines():
        words = line.split(None, 3)
        if len(words) < 3 or not (words[0].isdecimal() and words[1].isdecimal()):
            continue
        container = _CONTAINER.search(words[3]) if len(words) > 3 else None
        found.append(
            ProcessOwner(
                pid=int(words[0]),
                parent=int(words[1]),
                user=words[2],
                container=container[1] if container else None,
            )
        )
    yield ProcessOwners(owners=tuple(found))


def _drm(reading: Reading) -> Iterable[Fact]:
    if "No such file" in reading.text:
        # No such module: a machine without this GPU.
        return
    values: dict[str, bool] = {}
    lines = [line.strip() for line in reading.text.splitlines() if line.strip()]
    named = re.findall(r"(modeset|fbdev)\W+([YN])\b", reading.text)
    single = re.search(r"parameters/(modeset|fbdev)$", reading.source)
    if not named and single and lines in (["Y"], ["N"]):
        named = [(single[1], lines[0])]
    values |= {name: word == "Y" for name, word in named}
    if not values:
        raise UnusableOutput("no modeset and no fbdev")
    yield DrmSettings(**values)


_QUERY = (
    "utilization.gpu,clocks.sm,clocks.max.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
)
_QUERY_COMMAND = f"nvidia-smi --query-gpu={_QUERY} --format=csv,noheader,nounits"
_MEMORY = "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader"
_APPS = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits"


def _load_script(_: Context) -> str:
    """One look; two more, 4 s apart, only where the first one shows work."""
    return f"""\
look() {{ {_QUERY_COMMAND}; }}
first=$(look) || {{ status=$?; printf '%s\\n' "$first"; exit $status; }}
printf '%s\\n' "$first"
busy=${{first%%,*}}
case "$busy" in ''|*[!0-9]*) exit 0 ;; esac
if [ "$busy" -ge 80 ]; then sleep 5; look; sleep 5; look; fi
"""


def _owner_script(_: Context) -> str:
    return """\
command -v nvidia-smi >/dev/null 2>&1 || exit 0
for pid in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null); do
  case "$pid" in *[!0-9]*) continue ;; esac
  set -- $(ps -o ppid=,user= -p "$pid" 2>/dev/null)
  echo "$pid ${1:-0} ${2:--} $(tail -n 1 "/proc/$pid/cgroup" 2>/dev/null)"
done
"""


_SMI = rf"{RUN}(?:\S*/)?nvidia-smi"
READERS: tuple[Reader, ...] = (
    Reader(
        "gpu.query", (GpuSamples,), _query, commands=(rf"{_SMI}\b.*--query-gpu\b.*",),
    ),
    Reader(
        "gpu.processes", (GpuProcesses,), _apps, commands=(rf"{_SMI}\b.*--query-compute-apps\b.*",),
    ),
    Reader("gpu.list", (Gpus,), _list, commands=(rf"{_SMI} (?:-L|--list-gpus){END}",)),
    Reader("gpu.dmon", (GpuSamples,), dmon, commands=(rf"{_SMI} dmon\b.*",)),
    Reader(
        "gpu.full", (GpuSamples,), full,
        commands=(rf"{_SMI} (?:-\S+ )*(?:-q|--query)(?: .*)?{END}",),
    ),
    Reader(
        "gpu.table", (GpuDriver,), table,
        commands=(rf"{_SMI}{END}(?: ?\|.*)?",), whats=(r"nvidia-smi",),
    ),
    Reader(
        "gpu.cgroup", (ProcessOwners,), _cgroup,
        commands=(rf"{RUN}cat /proc/\d+/cgroup{END}",), paths=(r".*proc/\d+/cgroup",),
    ),
    Reader("gpu.owners", (ProcessOwners,), _owners, whats=(r"gpu process owners",)),
    Reader(
        "gpu.drm", (DrmSettings,), _drm,
        commands=(rf"{RUN}{READ} .*nvidia_drm/parameters/.*",),
        paths=(r".*nvidia_drm/parameters/\S+",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    Ask("gpu.load", _load_script, command=_QUERY_COMMAND),
    ask_command("gpu.memory", _MEMORY),
    ask_command("gpu.processes", _APPS),
    Ask("gpu.owners", _owner_script, what="gpu process owners"),
    ask_command("gpu.list", "nvidia-smi -L"),
    ask_command("gpu.drm", "grep . /sys/module/nvidia_drm/parameters/modeset"
                " /sys/module/nvidia_drm/parameters/fbdev"),
)  # fmt: skip
__all__ = [
    "ASKS",
    "NO_ANSWER",
    "NO_TOOL",
    "READERS",
    "REASONS",
    "DrmSettings",
    "GpuDriver",
    "GpuProcess",
    "GpuProcesses",
    "GpuSample",
    "GpuSamples",
    "Gpus",
    "ProcessOwner",
    "ProcessOwners",
    "number_of",
]
