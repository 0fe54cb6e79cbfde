"""What pair tests measured between two nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.sysfs import files, is_absent, wherever
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

Tool = Literal["rdma", "tcp", "collective"]


class Rate(Model):
    """One measurement."""

    tool: Tool
    average_gbps: float | None
    """Gigabits per second; None = the test gave no result."""
    size_bytes: int | None = None
    device: str | None = None
    target: str | None = None
    """The place at the other end, where the reading says it."""
    is_iperf: bool = False
    """Whether iperf measured it, which fills a port further than a plain stream."""
    backend: str | None = None
    """Of a collective: ``nccl``, or ``gloo`` where no GPU took part."""
    wrong_values: int | None = None
    """Of a collective: how many numbers of the result were wrong; None = not checked."""
    failure: str | None = None
    """Of a collective without a result: what it said last."""


class Rates(Fact):
    """Measurements from one place."""

    rates: tuple[Rate, ...] = ()

    def best_gbps(self, tool: Tool) -> float | None:
        """The highest figure of one tool; None without a result."""
        known = [
            r.average_gbps for r in self.rates if r.tool == tool and r.average_gbps is not None
        ]
        return max(known, default=None)


class Latency(Model):
    """Times of small RDMA writes."""

    size_bytes: int
    average_us: float
    p99_us: float | None = None
    """99 of 100 took no longer; None = the tool did not say."""


class Latencies(Fact):
    """Latency tests from one place."""

    tests: tuple[Latency, ...] = ()


class ErrorCounters(Fact):
    """Counters of errors before and after a test, by ``interface/counter``."""

    before: dict[str, int] = Field(default_factory=dict)
    after: dict[str, int] = Field(default_factory=dict)

    @property
    def new(self) -> dict[str, int]:
        """What was counted between the two readings; counters that were read once are left out."""
        grown = {k: n - self.before[k] for k, n in self.after.items() if k in self.before}
        return {name: count for name, count in grown.items() if count > 0}


def _target(reading: Reading) -> str | None:
    arrow = re.search(r"(?:->|→|<->)\s*([\w.-]+)", f"{reading.note} {reading.what} {reading.label}")
    return arrow[1] if arrow else None


def _device(reading: Reading) -> str | None:
    text = f"{reading.command} {reading.what} {reading.note}\n{reading.text}"
    found = re.search(r"(?:-d |--ib-dev[= ]|Device\s*:\s*)(\S+)", text)
    return found[1] if found else None


# In MB (10^6) or MiB (2^20) per second unless the head says Gb/sec.
_UNITS = {"gb/sec": 1.0, "gbit/sec": 1.0, "mb/sec": 8e-3, "mib/sec": 8 * 2**20 / 1e9}
_PERF_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+([\d.]+|inf|nan)\s+([\d.]+|inf|nan)(?:\s+[\d.]+)?\s*$", re.M
)


def _perftest(reading: Reading) -> list[Fact]:
    """``ib_write_bw`` and its sisters: the row below ``BW average[...]``."""
    if is_absent(reading):
        return []
    # perftest writes MB/sec and means 2^20 bytes.
    head = re.search(r"BW average\[([A-Za-z/]+)\]", reading.text)
    unit = head[1].lower() if head else "gb/sec"
    factor = _UNITS.get(unit, 1.0) if unit != "mb/sec" else _UNITS["mib/sec"]
    rates = [
        Rate(
            tool="rdma",
            size_bytes=int(row[1]),
            average_gbps=round(float(row[4]) * factor, 3),
            device=_device(reading),
            target=_target(reading),
        )
        for row in _PERF_ROW.finditer(reading.text)
        if row[4] not in ("inf", "nan")
    ]
    if not rates:
        if re.search(r"(?i)couldn't connect|failed|error|unable|timeout|timed out", reading.text):
            lost = Rate(
                tool="rdma", average_gbps=None, device=_device(reading), target=_target(reading)
            )
            return [Rates(rates=(lost,))]
        raise UnusableOutput("no result of a bandwidth test in the text")
    return [Rates(rates=tuple(rates))]


def _iperf(reading: Reading) -> list[Fact]:
    """``iperf3``, as text or JSON: the receiver's sum, else the sender's."""
    if is_absent(reading):
        return []
    gbps = _iperf_json(reading.text) if reading.text.lstrip().startswith("{") else None
    if gbps is None:
        sums = list(_iperf_sums(reading.text))
        gbps = next((rate for rate, end in reversed(sums) if end == "receiver"), None)
        gbps = gbps if gbps is not None else (sums[-1][0] if sums else None)
    if gbps is None:
        raise UnusableOutput("no result of iperf in the text")
    return [
        Rates(
            rates=(
                Rate(
                    tool="tcp", average_gbps=round(gbps, 3), target=_target(reading), is_iperf=True
                ),
            )
        )
    ]


def _iperf_json(text: str) -> float | None:
    try:
        end = json.loads(text).get("end", {})
        for name in ("sum_received", "sum", "sum_sent"):
            if name in end:
                return float(end[name]["bits_per_second"]) / 1e9
    except (AttributeError, TypeError, KeyError) as error:
        raise UnusableOutput("no result of iperf in the JSON") from error
    return None


def _iperf_sums(text: str) -> Iterator[tuple[float, str]]:
    pattern = r"^\[(?:SUM|\s*\d+)\].*?([\d.]+) ([KMG])bits/sec.*?(sender|receiver)?\s*$"
    for row in re.finditer(pattern, text, re.M):
        yield float(row[1]) * {"K": 1e-6, "M": 1e-3, "G": 1.0}[row[2]], row[3] or ""


def _tcp_pair(reading: Reading) -> list[Fact]:
    """Our own pair test: ``received_bytes=N`` and ``elapsed_s=T``, ``tcp_gbps=X``."""
    got = re.search(r"\bbytes=(\d+)\s+seconds=([\d.]+)", reading.text)
    gbps = None
    if got and float(got[2]) > 0:
        gbps = int(got[1]) * 8 / 1e9 / float(got[2])
    elif re.search(
        r"(?i)\b(?:timeout|timed out|refused|unreachable|no connection)\b", reading.text
    ):
        gbps = None
    else:
        raise UnusableOutput("no result of the TCP test in the text")
    size = int(got[1]) if got else None
    rate = None if gbps is None else round(gbps, 3)
    return [
        Rates(
            rates=(Rate(tool="tcp", average_gbps=rate, size_bytes=size, target=_target(reading)),)
        )
    ]


_COLLECTIVE = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\S+\s+-?\d+\s+[\d.]+\s+([\d.]+)\s+([\d.]+)\s+(\S+)", re.M
)
_BACKEND = re.compile(r"^backend (\w+)$", re.M)


def _nccl_tests(reading: Reading) -> list[Fact]:
    """nccl-tests, and our own all-reduce: bus bandwidth in GB/s of every size, kept in Gb/s."""
    if is_absent(reading):
        return []
    backend = found[1] if (found := _BACKEND.search(reading.text)) else "nccl"
    rates = tuple(
        Rate(
            tool="collective",
            size_bytes=int(row[1]),
            average_gbps=round(float(row[3]) * 8, 3),
            backend=backend,
            wrong_values=int(row[4]) if row[4].isdigit() else None,
        )
        for row in _COLLECTIVE.finditer(reading.text)
    )
    if not rates and (failure := _last_error(reading)):
        rates = (Rate(tool="collective", average_gbps=None, backend=backend, failure=failure),)
    if not rates:
        raise UnusableOutput("no row of a collective test in the text")
    return [Rates(rates=rates)]


_RANK_PREFIX = re.compile(r"(?m)^\[rank\d+\]: ?")
_FAILED = re.compile(
    r"(?i)\s*(?:[\w.]*(?:error|exception)\b|[^ ]{0,80} .{0,80}NCCL (?:WARN|error)\b|no answer)"
)


def _last_error(reading: Reading) -> str | None:
    """The line that says why a collective gave no result.

    Notes: torch repeats NCCL's own words below ``Last error:`` (seen on an H200, 1 December 2026);
    they say more than the class of the exception.
    """
    lines = [line.strip() for line in _RANK_PREFIX.sub("", reading.text).splitlines()]
    after = [lines[i + 1] for i, line in enumerate(lines[:-1]) if line == "Last error:"]
    said = [line for line in after if line] or [line for line in lines if _FAILED.match(line)]
    return said[-1][:300] if said else None


_LATENCY = re.compile(
    r"^\s*(\d+)\s+\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+[\d.]+(?:\s+([\d.]+))?", re.M
)


def _latency(reading: Reading) -> list[Fact]:
    """``ib_write_lat``: bytes, iterations, min, max, typical, average, deviation, 99 %."""
    if is_absent(reading):
        return []
    tests = tuple(
        Latency(
            size_bytes=int(row[1]),
            average_us=float(row[2]),
            p99_us=float(row[3]) if row[3] else None,
        )
        for row in _LATENCY.finditer(reading.text)
    )
    if not tests:
        raise UnusableOutput("no row of a latency test in the text")
    return [Latencies(tests=tests)]


def _counters(reading: Reading) -> list[Fact]:
    """``/sys/class/net/IF/statistics/NAME:VALUE`` lines, before or after a test."""
    found = {}
    for path, value in files(reading):
        row = re.fullmatch(r"/sys/class/net/([^/]+)/(?:statistics/)?(\w+)", path)
        if row and value.isdigit():
            found[f"{row[1]}/{row[2]}"] = int(value)
    if not found:
        raise UnusableOutput("no counter in the text")
    is_after = re.search(r"(?i)\bafter\b", reading.what or "") is not None
    return [ErrorCounters(after=found) if is_after else ErrorCounters(before=found)]


READERS: tuple[Reader, ...] = (
    Reader(
        "bandwidth.rdma", (Rates,), _perftest,
        commands=wherever(r"ib_(?:write|read|send)_bw\b.*",),
        whats=(r"(?:ib_(?:write|read|send)_bw|rdma bandwidth|perftest)\b.*",),
    ),
    Reader(
        "bandwidth.iperf", (Rates,), _iperf,
        commands=wherever(r"iperf3?\b.*",), whats=(r"iperf3?\b.*",),
    ),
    Reader(
        "bandwidth.latency", (Latencies,), _latency,
        commands=wherever(r"ib_(?:write|read|send)_lat\b.*"),
        whats=(r"ib_(?:write|read|send)_lat\b.*",),
    ),
    Reader(
        "bandwidth.counters", (ErrorCounters,), _counters,
        whats=(r"link counters (?:before|after)\b.*",),
    ),
    Reader("bandwidth.tcp", (Rates,), _tcp_pair, whats=(r"tcp (?:pair )?(?:test|bandwidth)\b.*",)),
    Reader(
        "bandwidth.collective", (Rates,), _nccl_tests,
        commands=wherever(r".*\b(?:all_gather|all_reduce|reduce_scatter)_perf\b.*",),
        whats=(r"(?:nccl-tests|(?:all_gather|all_reduce|reduce_scatter)_perf)\b.*",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = ()
"""None: a test of bandwidth is a load, which only ``doctor --bandwidth`` makes."""
