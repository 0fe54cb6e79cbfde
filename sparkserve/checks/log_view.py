"""All logs of a scene through the one watcher, with the places that they were read at."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from sparkserve.checks.scene import Scene
from sparkserve.engine.watcher import Fault, Watcher
from sparkserve.facts.log_time import YEARLESS
from sparkserve.facts.logs import EngineLog, LogLine


class Log(NamedTuple):
    """What one rank wrote at one place."""

    place: str | None
    lines: tuple[LogLine, ...]
    quiet_s: float | None
    ahead_s: float = 0.0


class View(NamedTuple):
    """Every log, and what the watcher made of them; a fault's rank is a place in ``logs``."""

    logs: tuple[Log, ...]
    watcher: Watcher

    def log_of(self, fault: Fault) -> Log:
        """The log that holds a fault."""
        return self.logs[fault.rank]

    def name(self, fault: Fault) -> str:
        """Where a fault was written, for a sentence."""
        return self.log_of(fault).place or "one rank"


def look(scene: Scene) -> View:
    """Read every line of every log, each rank's in its order."""
    logs = tuple(log for place, fact in scene.each(EngineLog) for log in _by_rank(place, fact))
    year = _year(line.since for log in logs for line in log.lines)
    watcher = Watcher()
    for number, log in enumerate(logs):
        for line in log.lines:
            at = _with_year(line.since, year)
            if at is not None:
                at -= timedelta(seconds=log.ahead_s)
            watcher.feed(number, log.place or "", line.text, at)
    return View(logs, watcher)


def _by_rank(place: str | None, log: EngineLog) -> list[Log]:
    """One log per rank where one text holds the lines of several; else the log as it is."""
    ranks = {line.rank for line in log.lines if line.rank is not None}
    if len(ranks) < 2:
        where = place or next((line.place for line in log.lines), None)
        if where is None and ranks:
            where = f"rank{ranks.pop()}"
        return [Log(where, log.lines, log.quiet_s, log.ahead_s)]
    split: dict[int, list[LogLine]] = {}
    current = min(ranks)
    for line in log.lines:
        current = current if line.rank is None else line.rank
        split.setdefault(current, []).append(line)
    return [Log(f"rank{rank}", tuple(lines), log.quiet_s) for rank, lines in sorted(split.items())]


def _year(times: Iterable[datetime | None]) -> int | None:
    """The year that some line says, for those that say none."""
    return next((time.year for time in times if time is not None and time.year != YEARLESS), None)


def _with_year(at: datetime | None, year: int | None) -> datetime | None:
    if at is None or year is None or at.year != YEARLESS:
        return at
    try:
        return at.replace(year=year)
    except ValueError:
        # The 29th of February of a year that has none: nobody can tell when that was.
        return None


def clock(fault: Fault) -> str:
    """When a fault was written, as `` at 10:21:10``; empty where nobody said."""
    return f" at {fault.at:%H:%M:%S} UTC" if fault.at is not None else ""
