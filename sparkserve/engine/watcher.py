"""What the log lines of all ranks mean together: the earliest error is the cause.

A line is weighed before it is blamed. What a rank says when another one is gone is a consequence;
a fault after which the same rank came further or generated did not end it; a line that calls itself
a warning, and one far before the rank's last error, are blamed only where nothing better is known.
The rule and its reasons stand in docs/decisions/0011-blame-and-wedge.md.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sparkserve.engine.engine_lines import CONSEQUENCES, FAULTS, MEASURES, OURS, VAGUE
from sparkserve.engine.host_lines import LINES, REPLIES
from sparkserve.engine.patterns import Pattern

LAST_LINES = 20
FAR_LINES = 100
"""Ordinary lines between a fault and a later one that make the first no part of the end.
[proposal]"""

PATTERNS: tuple[Pattern, ...] = (OURS, *CONSEQUENCES, *FAULTS, *LINES, *MEASURES, *VAGUE)
"""Every row for lines of logs, in the order in which they are tried."""
ALL_PATTERNS = (*PATTERNS, *REPLIES)
_WORK = tuple(pattern for pattern in PATTERNS if pattern.weight == "ready")

_EXCEPTION = re.compile(
    r"^(?:\S+\s+\|\s+)?(?:\d{4}-\S+\s+)?(?:rank\s?\d+\s+)?(?:\[[^\]]*\]:?\s*|\([^)]*\)\s*)*"
    r"(?:(?:ERROR|CRITICAL)\s+(?:[\d:.,-]+\s+)*(?:\[[^\]]*\]\s*)?)?"
    r"(?P<what>(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*)?(?:Error|Exception|Exit|Interrupt)\b(?::.*)?)$"
)
_EXCEPTION_ROW = Pattern(
    "exception", re.compile(r"(?P<what>.*)", re.DOTALL), "fault", "the engine raised {what}"
)
_GENERIC = ("exception", "traceback")
_LONGEST_CHARS = 4000
"""No sign of a fault stands farther behind in its line; a dumped request is longer."""
_NEAR_LINES = 20
"""Lines within which an exception is explained. [proposal]"""
_MILD = re.compile(
    r"(?i)\bwarn(?:ing)?\b|\bignor(?:e|ed|ing)\b|\bfall(?:s|ing)? ?back\b|\bretry|\bnon-?fatal\b"
    r"|\bINFO\b|\bDEBUG\b|(?:^|\[)W\d{3,4} |KeyboardInterrupt|SystemExit|CancelledError"
)
_LOUD = re.compile(r"NCCL (?:WARN|INFO)|sparkserve: FATAL")
"""Words of a level that say nothing about how grave the line is."""
_INSIDE = re.compile(
    r"^\s|^\[[^\]]*\]:?\s{2,}|Traceback \(most recent call last\)|^$"
    r"|^(?:\([^)]*\) )?(?:ERROR|CRITICAL)\b"
)
"""Lines that belong to a traceback or a dump."""


@dataclass(frozen=True)
class Fault:
    """One suspicious line of one rank."""

    rank: int
    node: str
    line: str
    pattern: Pattern
    order: int
    """Place among the lines of all ranks as they arrived."""
    at: datetime | None = None
    """When it was written, in the common time of all ranks; None = not said."""
    ordinary: int = 0
    """Lines of ordinary work that this rank had written before it."""

    @property
    def meaning(self) -> str:
        """What the line means, in words."""
        return self.pattern.say(self.line)

    @property
    def is_mild(self) -> bool:
        """Whether the line calls itself no error."""
        return _MILD.search(_LOUD.sub("", self.line)) is not None


@dataclass
class _Rank:
    """What is remembered of one rank's log."""

    tail: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    ordinary: int = 0
    settled_order: int = 0
    """Place of the newest line that shows that the rank works; 0 = none yet."""
    open_traceback: Fault | None = None
    newest: Fault | None = None
    """The newest line that says something, where it is one that must not stay the newest."""


@dataclass
class Watcher:
    """Reads the lines of all ranks in order of arrival."""

    faults: list[Fault] = field(default_factory=list)
    """Faults and consequences, in order of arrival."""
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _count: int = 0

    def feed(self, rank: int, node: str, line: str, at: datetime | None = None) -> None:
        """Take one log line of one rank.

        at: when it was written, in the common time of all ranks; None where that is not known.
        """
        self._count += 1
        line = line[:_LONGEST_CHARS]
        seen = self._ranks.setdefault(rank, _Rank())
        seen.tail.append(line)
        if not _INSIDE.match(line):
            seen.ordinary += 1
            seen.newest = None
        pattern = match(line)
        open_fault = seen.open_traceback
        if open_fault is not None and (found := _EXCEPTION.search(line)):
            # The exception's own line says more than the word Traceback above it.
            seen.open_traceback = None
            self._replace(open_fault, found["what"])
            return
        if pattern is None and (found := _EXCEPTION.search(line)):
            line, pattern = found["what"], _EXCEPTION_ROW
        wrong = pattern is not None and pattern.weight in ("fault", "consequence")
        if not wrong and any(work.regex.search(line) for work in _WORK):
            # A line of work may hold a figure, too, for which another row knows it.
            seen.settled_order = self._count
        if pattern is None:
            return
        fault = Fault(rank, node, line, pattern, self._count, at, seen.ordinary)
        if pattern.weight == "stall":
            seen.newest = fault
        elif wrong:
            self.faults.append(fault)
            if pattern.name == "traceback":
                seen.open_traceback = fault

    def cause(self, rank: int | None = None, *, slack_s: float = 0.0) -> Fault | None:
        """The earliest of the gravest faults (of one rank, where given).

        Earliest by time where all of them have one, else by arrival; of those within ``slack_s`` of
        the earliest the first to arrive. None where nothing is left to blame.
        """
        open_faults = [f for f in self.open() if rank is None or f.rank == rank]
        if not open_faults:
            return None
        gravest = max(self._gravity(fault) for fault in open_faults)
        if gravest < 0:
            return None
        found = [fault for fault in open_faults if self._gravity(fault) == gravest]
        first = earliest(found, slack_s)
        if first.pattern.yields:
            return self._stalled_by(first, open_faults)
        return self._explained(first, found) if first.pattern.name in _GENERIC else first

    def open(self) -> list[Fault]:
        """Faults and consequences after which their rank did no work any more; lasting ones too."""
        return [f for f in self.faults if f.pattern.lasting or not self.settled(f)]

    def settled(self, fault: Fault) -> bool:
        """Whether the rank came further, or generated, after this line."""
        return self._ranks[fault.rank].settled_order > fault.order

    def stall(self, rank: int, still_s: float) -> Fault | None:
        """The newest line of a rank, where it must not stay the newest for so long."""
        seen = self._ranks.get(rank)
        newest = seen.newest if seen else None
        return newest if newest is not None and still_s >= newest.pattern.stall_s else None

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """The newest lines of a rank."""
        seen = self._ranks.get(rank)
        return tuple(seen.tail) if seen else ()

    def _gravity(self, fault: Fault) -> int:
        """How much a line weighs as a cause; below 0 = it ends no engine."""
        if fault.pattern.lasting:
            return -1
        if fault.pattern.weight == "consequence":
            return 0
        if fault.is_mild:
            return 1
        if fault.pattern.yields:
            return 2
        return 3 if self._is_far(fault) else 4

    def _is_far(self, fault: Fault) -> bool:
        later = (f for f in self.open() if f.rank == fault.rank and f.order > fault.order)
        return any(
            f.ordinary - fault.ordinary > FAR_LINES
            for f in later
            if f.pattern.weight == "fault" and not f.pattern.lasting and not f.is_mild
        )

    @staticmethod
    def _explained(fault: Fault, others: list[Fault]) -> Fault:
        """The line right after an exception that says what it was about, where there is one."""
        near = (
            other
            for other in others
            if other.rank == fault.rank
            and other.pattern.name not in _GENERIC
            and fault.order < other.order <= fault.order + _NEAR_LINES
        )
        return next(near, fault)

    @staticmethod
    def _stalled_by(fault: Fault, others: list[Fault]) -> Fault:
        """What made the others wait, where a line of the same code says so."""
        known = [
            other
            for other in others
            if other.pattern.lasting and set(other.pattern.codes) & set(fault.pattern.codes)
        ]
        return earliest(known) if known else fault

    def _replace(self, old: Fault, what: str) -> None:
        pattern = match(what)
        if pattern is None or pattern.weight not in ("fault", "consequence"):
            pattern = _EXCEPTION_ROW
        place = self.faults.index(old)
        self.faults[place] = Fault(
            old.rank, old.node, what, pattern, old.order, old.at, old.ordinary
        )


def match(line: str) -> Pattern | None:
    """The first row of the table that knows the line."""
    head = line[:_LONGEST_CHARS]
    return next((pattern for pattern in PATTERNS if pattern.regex.search(head)), None)


def earliest(faults: list[Fault], slack_s: float = 0.0) -> Fault:
    """The first of some faults: by time where all have one, else by arrival."""
    times = [fault.at for fault in faults if fault.at is not None]
    if len(times) == len(faults):
        until = min(times) + timedelta(seconds=slack_s)
        faults = [fault for fault in faults if fault.at is not None and fault.at <= until]
        if not slack_s:
            return min(faults, key=lambda fault: (fault.at, fault.order))
    return min(faults, key=lambda fault: fault.order)
