"""What the log lines of all ranks mean together: the earliest error is the cause.

Errors of NCCL, TCPStore and gloo on the other ranks are consequences of a rank that died
before; they are never named while an earlier fault is known. A new pattern is one row here.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Weight = Literal["fault", "consequence"]

LAST_LINES = 20


@dataclass(frozen=True)
class Pattern:
    """One kind of line: what it means and what helps."""

    name: str
    regex: re.Pattern[str]
    weight: Weight
    meaning: str
    fix: str = ""


def _row(name: str, regex: str, weight: Weight, meaning: str, fix: str = "") -> Pattern:
    return Pattern(name, re.compile(regex), weight, meaning, fix)


PATTERNS: tuple[Pattern, ...] = (
    _row(
        "refused",
        r"sparkserve: FATAL (?P<what>.+)",
        "fault",
        "sparkserve refused to serve: {what}",
    ),
    _row(
        "port-taken",
        r"(?i)address already in use|Port \d+ is (?:not available|already in use)",
        "fault",
        "a port that the engine needs is taken on this node",
        "ss -ltnp",
    ),
    _row(
        "out-of-memory",
        r"torch\.OutOfMemoryError|CUDA out of memory|std::bad_alloc|\bMemoryError\b"
        r"|Cannot allocate memory",
        "fault",
        "the engine ran out of memory",
        "lower context.kv_tokens, or stop what else uses memory on this node",
    ),
    _row(
        "no-memory-for-pool",
        r"(?i)not enough memory.*(?:static|pool)|increase --?mem-fraction-static",
        "fault",
        "no memory is left for the KV pool",
        "raise context.mem_fraction_static, or lower context.kv_tokens",
    ),
    _row(
        "no-interface",
        r"Unable to find address for: (?P<what>\S+)",
        "fault",
        "this node has no interface {what} with an address",
        "sparkserve cluster show",
    ),
    _row(
        "missing-module",
        r"(?:ModuleNotFoundError|ImportError): (?P<what>.+)",
        "fault",
        "the runtime is incomplete: {what}",
    ),
    _row(
        "bad-flag",
        r"error: unrecognized arguments: (?P<what>.+)",
        "fault",
        "this engine version does not know {what}",
        "sparkserve profile show",
    ),
    _row(
        "bad-checkpoint",
        r"(?P<what>(?:SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer).*)",
        "fault",
        "a checkpoint file is corrupt: {what}",
    ),
    _row(
        "lost-peer",
        r"(?i)connection (?:closed|reset) by peer|connection reset|TCPStore|NCCL (?:WARN|error)"
        r"|ProcessGroupNCCL|gloo.*(?:timed? ?out|connection)",
        "consequence",
        "this rank lost another rank",
    ),
    _row(
        "traceback",
        r"Traceback \(most recent call last\)",
        "fault",
        "the engine raised an exception",
    ),
    _row(
        "died-child",
        r"Received sigquit from a child process",
        "consequence",
        "a process of this rank died",
    ),
)
_EXCEPTION = re.compile(
    r"^(?:\[[^\]]*\] )?(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)"
)


@dataclass(frozen=True)
class Fault:
    """One suspicious line of one rank."""

    rank: int
    node: str
    line: str
    pattern: Pattern
    order: int
    """Place among the lines of all ranks as they arrived."""

    @property
    def meaning(self) -> str:
        """What the line means, in words."""
        found = self.pattern.regex.search(self.line)
        return self.pattern.meaning.format(**(found.groupdict() if found else {}))


@dataclass
class Watcher:
    """Reads the lines of all ranks in order of arrival."""

    faults: list[Fault] = field(default_factory=list)
    _tails: dict[int, deque[str]] = field(default_factory=dict)
    _count: int = 0
    _in_traceback: dict[int, Fault] = field(default_factory=dict)

    def feed(self, rank: int, node: str, line: str) -> None:
        """Take one log line of one rank."""
        self._count += 1
        self._tails.setdefault(rank, deque(maxlen=LAST_LINES)).append(line)
        open_fault = self._in_traceback.get(rank)
        if open_fault is not None and (found := _EXCEPTION.search(line)):
            # The exception's own line says more than the word Traceback above it.
            del self._in_traceback[rank]
            self._replace(open_fault, rank, node, found["what"])
            return
        for pattern in PATTERNS:
            if pattern.regex.search(line):
                fault = Fault(rank, node, line, pattern, self._count)
                self.faults.append(fault)
                if pattern.name == "traceback":
                    self._in_traceback[rank] = fault
                return

    def cause(self, rank: int | None = None) -> Fault | None:
        """The earliest fault (of one rank, where given); consequences only where nothing else."""
        found = [f for f in self.faults if rank is None or f.rank == rank]
        faults = [f for f in found if f.pattern.weight == "fault"]
        return min(faults or found, key=lambda f: f.order, default=None)

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """The newest lines of a rank."""
        return tuple(self._tails.get(rank, ()))

    def _replace(self, old: Fault, rank: int, node: str, what: str) -> None:
        pattern = next((p for p in PATTERNS if p.regex.search(what)), None) or Pattern(
            "exception", re.compile(r"(?P<what>.*)"), "fault", "the engine raised {what}"
        )
        place = self.faults.index(old)
        self.faults[place] = Fault(rank, node, what, pattern, old.order)
