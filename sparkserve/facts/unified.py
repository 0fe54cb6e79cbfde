"""Unified memory beyond MemAvailable: CMA, swap, fragmentation, reserves, page cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from sparkserve.facts.command_form import END, READ, RUN
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, ask_command, ask_file
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading
from sparkserve.units import KIB, parse_bytes


class Meminfo(Fact):
    """The kernel's count of the one pool of memory, in bytes; None = not said, never 0."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    available_bytes: int | None = None
    buffers_bytes: int | None = None
    cached_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    cma_total_bytes: int | None = None
    cma_free_bytes: int | None = None

    @property
    def swap_used_bytes(self) -> int | None:
        """Swap in use; None where either count is unknown."""
        if self.swap_total_bytes is None or self.swap_free_bytes is None:
            return None
        return max(0, self.swap_total_bytes - self.swap_free_bytes)


class Zone(Model):
    """Free blocks of one zone of memory."""

    node: int
    name: str
    blocks: tuple[int, ...]
    """Number of free blocks of 2^k pages, by order k."""


class Buddyinfo(Fact):
    """``/proc/buddyinfo``."""

    zones: tuple[Zone, ...] = ()


class Compaction(Fact):
    """How often the kernel had to move pages for a large block, since it started."""

    stalls: int | None = None
    failures: int | None = None
    successes: int | None = None


class Reserve(Fact):
    """``vm.min_free_kbytes``: what the kernel keeps for itself, off MemAvailable."""

    min_free_bytes: int | None = None


_NAMES = {
    "MemTotal": "total_bytes",
    "MemFree": "free_bytes",
    "MemAvailable": "available_bytes",
    "Buffers": "buffers_bytes",
    "Cached": "cached_bytes",
    "SwapTotal": "swap_total_bytes",
    "SwapFree": "swap_free_bytes",
    "CmaTotal": "cma_total_bytes",
    "CmaFree": "cma_free_bytes",
}
_LINE = re.compile(r"(?:\S*meminfo:)?\s*(\w+):\s+(\d{1,15})(?: kB)?\s*")
_MINFREE = re.compile(r"(?:(?:\S+:)?vm[./]min_free_kbytes\s*=\s*)?(\d{1,12})")
_ZONE = re.compile(
    r"(?:\S*buddyinfo:)?\s*Node\s+(\d{1,4}), zone\s+(\w+)(?:, type\s+\w+)?((?:\s+\d{1,12})+)\s*"
)
_COMPACT = {
    "compact_stall": "stalls", "compact_fail": "failures", "compact_success": "successes",
}  # fmt: skip


def _meminfo(reading: Reading) -> Iterator[Meminfo]:
    counts: dict[str, int] = {}
    for line in reading.text.splitlines():
        match = _LINE.fullmatch(line)
        if match and match[1] in _NAMES:
            counts.setdefault(_NAMES[match[1]], int(match[2]) * KIB)
    if not counts:
        raise UnusableOutput("no MemTotal, MemFree, MemAvailable, Swap or Cma line in it")
    yield Meminfo(**counts)


_UNITS = {
    "b": 1, "bytes": 1, "k": KIB, "kibi": KIB, "m": KIB**2, "mebi": KIB**2, "g": KIB**3,
    "gibi": KIB**3, "kilo": 1000, "mega": 1000**2, "giga": 1000**3, "tebi": KIB**4,
}  # fmt: skip
_COLUMNS = ("total", "used", "free", "shared", "cache", "available")


def _free_factor(command: str) -> int:
    """Bytes per unit of ``free``'s columns: KiB unless an option says otherwise."""
    for option in re.findall(r"(?:^|\s)--?([a-z]+)", command):
        if option in _UNITS:
            return _UNITS[option]
        if len(option) <= 3 and (unit := next((c for c in option if c in "bkmg"), None)):
            return _UNITS[unit]
    return KIB


def _amount(word: str, factor: int) -> int:
    plain = word.replace(",", ".")
    if re.fullmatch(r"\d+", plain):
        return int(plain) * factor
    return parse_bytes(re.sub(r"(?<=[KMGTP])i?B?$", "iB", plain))


def _free(reading: Reading) -> Iterator[Meminfo]:
    """``free`` in any language: the first row of figures is memory, the next one swap."""
    factor = _free_factor(reading.command or "")
    rows: list[list[str]] = []
    for line in reading.text.splitlines():
        match = re.fullmatch(r"\s*([^\d\s][^:]*):((?:\s+\d[\d.,]*[KMGTP]?i?B?)+)\s*", line)
        if match and not line.lstrip().startswith("-/+"):
            rows.append(match[2].split())
    if not rows or len(rows[0]) < 6:
        raise UnusableOutput("not the table of free: no row with total, used, free ... available")
    memory = [_amount(word, factor) for word in rows[0]]
    values = {"total_bytes": memory[0], "free_bytes": memory[2]}
    if "-/+" not in reading.text:
        values["available_bytes"] = memory[-1]
        if len(memory) == 6:
            values["cached_bytes"] = memory[4]
        else:
            values |= {"buffers_bytes": memory[4], "cached_bytes": memory[5]}
    if len(rows) > 1 and len(rows[1]) >= 3:
        swap = [_amount(word, factor) for word in rows[1]]
        values |= {"swap_total_bytes": swap[0], "swap_free_bytes": swap[2]}
    yield Meminfo(**values)


def _swaps(reading: Reading) -> Iterator[Meminfo]:
    """``swapon --show`` or ``/proc/swaps``: the sum over all devices; nothing = no swap."""
    if reading.rc not in (None, 0):
        raise UnusableOutput(f"exit {reading.rc}")
    size = used = 0
    for line in reading.text.splitlines():
        words = line.split()
        if not words or re.fullmatch(r"(?i)name|filename", words[0]):
            continue
        found = [w for w in words[1:] if re.fullmatch(r"\d[\d.,]*[KMGTP]?i?B?", w)]
        if len(found) < 2:
            raise UnusableOutput("a line without size and use of a swap device")
        size += _amount(found[0], KIB if "/proc/swaps" in reading.source else _plain(found[0]))
        used += _amount(found[1], KIB if "/proc/swaps" in reading.source else _plain(found[1]))
    yield Meminfo(swap_total_bytes=size, swap_free_bytes=max(0, size - used))


def _plain(word: str) -> int:
    # `swapon -s` counts KiB without a unit; `swapon --show --bytes` prints bytes, far larger.
    return 1 if word.isdigit() and len(word) > 10 else KIB


def _buddyinfo(reading: Reading) -> Iterator[Buddyinfo]:
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    for line in reading.text.splitlines():
        if match := _ZONE.fullmatch(line):
            blocks = tuple(int(word) for word in match[3].split())
            key = int(match[1]), match[2]
            # pagetypeinfo has a line per kind of page: their sum is what buddyinfo counts.
            found[key] = tuple(
                a + b for a, b in zip_longest(found.get(key, ()), blocks, fillvalue=0)
            )
    if not found:
        raise UnusableOutput("no line of a zone in it")
    zones = (Zone(node=node, name=name, blocks=blocks) for (node, name), blocks in found.items())
    yield Buddyinfo(zones=tuple(zones))


def _vmstat(reading: Reading) -> Iterator[Compaction]:
    counts: dict[str, int] = {}
    for line in reading.text.splitlines():
        words = line.replace("=", " ").split()
        if len(words) == 2 and words[0] in _COMPACT and re.fullmatch(r"\d{1,18}", words[1]):
            counts.setdefault(_COMPACT[words[0]], int(words[1]))
    if not counts:
        raise UnusableOutput("no compact_ line in it")
    yield Compaction(**counts)


def _reserve(reading: Reading) -> Iterator[Reserve]:
    for line in reading.text.splitlines():
        if match := _MINFREE.fullmatch(line.strip()):
            yield Reserve(min_free_bytes=int(match[1]) * KIB)
            return
    raise UnusableOutput("no number of KiB")


READERS: tuple[Reader, ...] = (
    Reader(
        "unified.meminfo", (Meminfo,), _meminfo,
        commands=(rf"{RUN}{READ} .*/proc/meminfo(?: .*)?{END}",), paths=(r".*meminfo(?:\.txt)?",),
        whats=(r"(?:/proc/)?meminfo\b.*",),
    ),
    Reader(
        "unified.free", (Meminfo,), _free,
        commands=(rf"{RUN}free(?: .*)?{END}",), whats=(r"free( -\w+)?",),
    ),
    Reader(
        "unified.swaps", (Meminfo,), _swaps,
        commands=(
            rf"{RUN}swapon(?: (?:-s|--show\S*|--summary|--bytes|--noheadings))*{END}",
            rf"{RUN}cat /proc/swaps",
        ),
        paths=(r".*proc/swaps",),
    ),
    Reader(
        "unified.buddyinfo", (Buddyinfo,), _buddyinfo,
        commands=(rf"{RUN}{READ} .*/proc/(?:buddyinfo|pagetypeinfo)(?: .*)?{END}",),
        paths=(r".*(?:buddyinfo|pagetypeinfo)(?:\.txt)?",),
        whats=(r"(?:/proc/)?buddyinfo\b.*",),
    ),
    Reader(
        "unified.vmstat", (Compaction,), _vmstat,
        commands=(rf"{RUN}{READ} .*/proc/vmstat(?: .*)?{END}",), paths=(r".*proc/vmstat",),
        whats=(r"(?:/proc/)?vmstat\b.*",),
    ),
    Reader(
        "unified.reserve", (Reserve,), _reserve,
        commands=(
            rf"{RUN}sysctl (?:-\w+ )*vm\.min_free_kbytes{END}",
            rf"{RUN}sysctl (?:-\w+|--all)(?: ?2>\S+)? ?\|.*min_free.*",
            rf"{RUN}{READ} .*/proc/sys/vm/min_free_kbytes{END}",
            rf"{RUN}{READ} .*min_free_kbytes.*sysctl\S*(?: .*)?{END}",
        ),
        paths=(r".*proc/sys/vm/min_free_kbytes", r".*/sysctl(?:\.d/\S+)?\.conf"),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    ask_file("unified.meminfo", "/proc/meminfo"),
    ask_file("unified.buddyinfo", "/proc/buddyinfo"),
    ask_command("unified.vmstat", "grep compact_ /proc/vmstat"),
    ask_command("unified.reserve", "cat /proc/sys/vm/min_free_kbytes"),
)
