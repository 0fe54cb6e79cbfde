"""Logs of engines and containers as lines with rank and time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Literal, Self

from sparkserve.facts.log_time import rank_of, time_of
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

Source = Literal["engine", "container", "exporter"]

_LINES_LIMIT = 200_000
"""Lines kept of one log, its end: what a judgement can weigh in a moment. [proposal]"""


class LogLine(Model):
    """One line of one log."""

    place: str | None
    """Where the log was read; the rank's name where only that is known."""
    rank: int | None
    """By the name of the log, else by the line itself."""
    at: datetime | None
    """Its own time in UTC; a form without a year has the year ``log_time.YEARLESS``."""
    since: datetime | None
    """Its own time, or that of the newest line before it: it was not written earlier."""
    number: int
    """Place within its log, from 1."""
    text: str


class EngineLog(Fact):
    """What one process or container printed."""

    lines: tuple[LogLine, ...]
    """In the order of the log; blank lines are left out."""
    source: Source = "engine"
    quiet_s: float | None = None
    """For how long the newest line was the newest when it was read; None = not said."""
    ahead_s: float = 0.0
    """How far the writer's clock is before the others', where the note says so."""

    def merged(self, other: Self) -> Self:
        """Both logs, one after the other; the longest known silence counts."""
        silences = [one for one in (self.quiet_s, other.quiet_s) if one is not None]
        return self.model_copy(
            update={
                "lines": tuple(dict.fromkeys((*self.lines, *other.lines))),
                "quiet_s": max(silences, default=None),
            }
        )


class ServiceJournal(Fact):
    """What systemd units other than the kernel and the engine wrote."""

    lines: tuple[str, ...]
    unit: str | None = None
    """The unit that was asked for; None = not said."""


_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SILENCE = re.compile(
    r"(?i)(?:(?:no|nothing|without)\b.{0,40}?\b(?:for|since|in)|quiet for|silent for|unchanged for"
    r"|stuck for|stands? (?:still )?for|newest .{0,25}?\b(?:is|was|for|:)"
    r"|last .{0,25}?\b(?:is|was|for|:))"
    r"\s*(?:about |~|over |> ?)?(?P<n>\d+(?:\.\d+)?)\s*(?P<unit>s|m|h)(?:ec\w*|in\w*|our\w*|rs?)?\b"
)


def quiet_s(words: str) -> float | None:
    """Seconds of silence that a note tells, such as ``no newer line for 130 s``; else None."""
    found = _SILENCE.search(words)
    return float(found["n"]) * _UNIT_S[found["unit"].lower()] if found else None


_NOW = re.compile(
    r"(?i)\b(?:now|date|clock|(?:read|taken|captured|copied|looked)(?: at)?)\b\D{0,20}?"
    r"(?:\d{4}-\d\d-\d\d[T ])?(\d\d):(\d\d):(\d\d)"
)
_AHEAD = re.compile(
    r"(?i)clock\b.{0,30}?(?P<n>\d+(?:\.\d+)?)\s*s(?:ec\w*)?\s+(?P<way>ahead|fast|behind|slow|late)"
)
_DAY_S = 86_400


def _age_s(words: str, newest: datetime | None) -> float | None:
    """Age of the newest line by a note that says when the log was read; None where none does."""
    told = _NOW.search(words)
    if told is None or newest is None:
        return None
    hours, minutes, seconds = (int(part) for part in told.groups())
    written_s = newest.hour * 3600 + newest.minute * 60 + newest.second
    return float((hours * 3600 + minutes * 60 + seconds - written_s) % _DAY_S)


def ahead_s(words: str) -> float:
    """Seconds by which a note says that a clock is ahead (behind: below 0); 0 = it says nothing."""
    found = _AHEAD.search(words)
    if found is None:
        return 0.0
    return float(found["n"]) * (1 if found["way"].lower() in ("ahead", "fast") else -1)


def _log(reading: Reading) -> Iterable[Fact]:
    told = rank_of(reading.what or "") if reading.what else None
    if told is None and reading.node:
        told = rank_of(reading.node)
    # Who reads a log by its rank alone still has a place to blame.
    place = reading.node or (f"rank{told}" if told is not None else None)
    lines, newest = [], None
    texts = reading.text.splitlines()
    first = max(0, len(texts) - _LINES_LIMIT)
    for number, text in enumerate(texts[first:], first + 1):
        if not text.strip():
            continue
        at = time_of(text)
        newest = at or newest
        lines.append(
            LogLine(
                place=place,
                rank=rank_of(text) if told is None else told,
                at=at,
                since=newest,
                number=number,
                text=text.rstrip(),
            )
        )
    if not lines and reading.rc not in (None, 0):
        raise UnusableOutput(f"the log could not be read (exit {reading.rc})")
    words = " ; ".join((reading.note, reading.what or "", reading.label))
    silence_s = quiet_s(words)
    yield EngineLog(
        lines=tuple(lines),
        source=_source(reading),
        quiet_s=_age_s(words, newest) if silence_s is None else silence_s,
        ahead_s=ahead_s(words),
    )


def _journal(reading: Reading) -> Iterable[Fact]:
    lines = tuple(line.rstrip() for line in reading.text.splitlines() if line.strip())
    if not lines and reading.rc not in (None, 0, 1):
        raise UnusableOutput(f"the journal could not be read (exit {reading.rc})")
    unit = re.search(r"(?:-\w*u[= ]?|--unit[= ])([\w@.:-]+)", reading.command or "")
    told = re.search(r"(?i)journal of (?:the )?(\S+)", reading.what or "")
    name = unit[1] if unit else told[1] if told else None
    yield ServiceJournal(lines=lines, unit=name.removesuffix(".service") if name else None)


def _source(reading: Reading) -> Source:
    words = f"{reading.what or ''} {reading.node or ''} {reading.path or ''}".lower()
    if re.search(r"export|nfs", words):
        return "exporter"
    if reading.command is not None and re.match(r"(?:docker|podman|nerdctl)\b", reading.command):
        return "container"
    return "engine"


_KERNEL = r"(?!.*(?:kern|dmesg|syslog|boot\.log|journal))"
READERS: tuple[Reader, ...] = (
    Reader(
        "logs.engine",
        (EngineLog,),
        _log,
        commands=(
            r"(?:ssh (?:-\S+ (?:\S+=\S+ )?)*\S+ )?"
            r"(?:docker|podman|nerdctl)(?: compose)?(?: -\S+)* logs\b.*",
            r"(?:docker|podman|nerdctl)(?: container)? logs\b.*",
            r"kubectl logs\b.*",
            r"sparkserve logs\b.*",
            rf"(?:cat|tail|head|grep|less|zcat|sed|awk)\b{_KERNEL}.*\S\.(?:log|out|err)\b.*",
            r"(?:docker|podman|nerdctl)(?: compose)? exec\b.* (?:cat|tail|head|grep) .*\.log\b.*",
            r"journalctl\b(?!.* -k\b)(?!.*--dmesg).*\b(?:sglang|vllm|sparkserve|engine)\S*.*",
        ),
        paths=(rf"{_KERNEL}.*\.(?:log|out|err)(?:\.\d+)?",),
        whats=(
            r"(?!.*\b(?:kernel|kern|dmesg|journal|packer|pack|ssh|switch)\b)"
            r".*\b(?:logs?|stderr|stdout)(?: (?:tail|excerpt|end|lines))?",
            r"(?:tail|end|last lines|excerpt) of (?:the )?(?!.*\b(?:kernel|dmesg)\b).*\blogs?",
            r"docker logs.*",
        ),
    ),
    Reader(
        "logs.journal",
        (ServiceJournal,),
        _journal,
        commands=(r"journalctl\b(?!.* -k\b)(?!.*--dmesg)(?=.* (?:-\w*u\b|--unit\b)).*",),
        whats=(r"(?:\S+ )?journal(?: of (?!.*\b(?:kernel|boot)\b).*| lines?| tail)?",),
    ),
)
LAST: tuple[Reader, ...] = (
    Reader(
        "logs.start", (EngineLog,), _log,
        commands=(
            r"(?:docker|podman|nerdctl)(?: container| compose|-compose)?(?: -\S+)* "
            r"(?:run|start|up|create|restart)\b.*",
            r"docker-compose(?: -\S+)* (?:up|start|restart)\b.*",
        ),
    ),
)  # fmt: skip
"""What a container, or docker in its place, prints at its start; of what no other reader takes."""
ASKS: tuple[Ask, ...] = ()
