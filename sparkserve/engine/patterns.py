"""What one kind of log line means: the form of a row of the pattern table.

The rows stand in ``engine_lines.py`` and ``host_lines.py``; the live watcher and the judgement of
pasted logs use the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Weight = Literal["fault", "stall", "evidence", "measure", "consequence", "info", "ready"]
"""
``fault``: names what is wrong. ``stall``: healthy starts print it too; wrong only where it stays
the newest line. ``evidence``: supports a diagnosis that other texts make. ``measure``: its figures
are compared. ``consequence``: what a rank says when another one is gone. ``info``: nothing is wrong
by it. ``ready``: the engine did what it is there for, so what came before did not end it.
"""
Stream = Literal["engine", "container", "kernel", "journal", "ssh", "exporter", "reply"]


@dataclass(frozen=True)
class Pattern:
    """One kind of line."""

    name: str
    regex: re.Pattern[str]
    """Searched within one line."""
    weight: Weight
    meaning: str
    """In words; ``{what}`` and other groups of the regex are filled in."""
    codes: tuple[str, ...] = ()
    """Faults that it may belong to; several where only other texts can tell which."""
    fix: str = ""
    """What helps, in one command or sentence."""
    source: str = ""
    """Case or page that shows the line."""
    stream: Stream = "engine"
    lasting: bool = False
    """Stays true however well the engine runs on: no reason of an end, but always worth saying."""
    yields: bool = False
    """Names only that something was waited for; another rank's own fault explains it."""
    stall_s: float = 120.0
    """``stall``: for how long it must be the newest line."""

    @property
    def proves(self) -> str | None:
        """The one code that this line alone proves; None where it takes more."""
        alone = self.weight == "fault" and len(self.codes) == 1 and not self.yields
        return self.codes[0] if alone else None

    def say(self, line: str) -> str:
        """The meaning with the line's own words in it."""
        found = self.regex.search(line)
        groups = {k: v for k, v in found.groupdict().items() if v} if found else {}
        return self.meaning.format_map(_Blank(groups))


class _Blank(dict[str, str]):
    """Groups by name; one that the line does not have is said to be unknown."""

    def __missing__(self, key: str) -> str:
        return "(not said)"
