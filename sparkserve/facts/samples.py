"""Samples over time: memory, container states, progress, metrics, running requests, streams."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.reply_streams import streamed_text
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_KB_PER_GIB = 1 << 20
TIME_COLUMNS = ("t", "time", "time_s", "t_s", "seconds", "elapsed", "elapsed_s", "s", "at", "at_s")
"""Names of a column that holds the time in seconds."""
_LARGEST_GIB = 4096
"""A bare number above it is no GiB: such a figure of one Spark's memory is in kB."""


class Series(Fact):
    """Samples in order of time; two series of one place are joined with every repeat."""

    def merged(self, other: Self) -> Self:
        """One after the other: that a figure stands still is what samples are for."""
        both = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, tuple) and isinstance(theirs, tuple):
                both[name] = mine + theirs
            else:
                both[name] = theirs if mine is None else mine
        return self.model_copy(update=both)


class MemorySamples(Series):
    """MemAvailable over time."""

    available_gib: tuple[float, ...]
    period_s: float | None = None
    """Time between two samples; None = not said."""


class StateSamples(Series):
    """What a container runtime said of one container, again and again."""

    states: tuple[str, ...]
    """Such as ``running`` and ``exited``, in lower case."""
    period_s: float | None = None


class ProgressSamples(Series):
    """Counters of one rank over time."""

    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]

    def merged(self, other: Self) -> Self:
        """Rows of both where they have the same columns; else the first alone."""
        if self.columns != other.columns:
            return self
        return self.model_copy(update={"rows": self.rows + other.rows})

    def column(self, *words: str) -> tuple[float, ...] | None:
        """The column of one of these names, else the first whose name holds one as a part.

        None where there is none.
        """
        parts = [set(name.split("_")) for name in self.columns]
        for matches in (
            [place for place, name in enumerate(self.columns) if name in words],
            [place for place, part in enumerate(parts) if part & set(words)],
        ):
            if matches:
                return tuple(row[matches[0]] for row in self.rows)
        return None


class MetricScrapes(Series):
    """Scrapes of an engine's ``/metrics``; equal names with other labels are summed."""

    scrapes: tuple[dict[str, float], ...]
    period_s: float | None = None

    def values(self, *endings: str) -> tuple[float, ...] | None:
        """One figure per scrape, of the first name that ends so; None where a scrape lacks it."""
        for ending in endings:
            found = [
                [value for name, value in scrape.items() if re.search(rf"(?:^|:){ending}$", name)]
                for scrape in self.scrapes
            ]
            if found and all(found):
                return tuple(values[0] for values in found)
        return None


class CanarySamples(Series):
    """Times of one small and steady piece of work."""

    ms: tuple[float, ...]
    best_known_ms: float | None = None


class RunningRequest(Model):
    """One request that the engine still works on."""

    id: str
    age_s: float | None = None
    output_tokens: int | None = None
    finish: str | None = None
    """Why it ended; None while it runs."""


class RequestSamples(Series):
    """Requests as one look at the engine shows them."""

    requests: tuple[RunningRequest, ...]


class StreamTail(Fact):
    """The newest text of one answer while it is generated."""

    text: str


def period_s(words: str) -> float | None:
    """Seconds between samples that a note tells, such as ``every 2 s`` or ``60 s apart``."""
    unit = r"\s*(?P<{0}>ms|s|sec\w*|m|min\w*)\b"
    found = re.search(
        rf"(?i)(?:every|each|interval(?: of)?|period)\s+(?P<a>{_NUMBER}){unit.format('ua')}"
        rf"|(?P<b>{_NUMBER}){unit.format('ub')}\s+(?:apart|between|later|interval)",
        words,
    )
    if found is None:
        return None
    number = float(found["a"] or found["b"])
    name = (found["ua"] or found["ub"]).lower()
    scale = 0.001 if name == "ms" else 60.0 if name.startswith("m") else 1.0
    return number * scale


def _words(reading: Reading) -> str:
    return " ; ".join((reading.note, reading.label, reading.what or ""))


def _numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(rf"(?<![\w.:-]){_NUMBER}(?![\w.:-])", text)]


def _memory(reading: Reading) -> Iterable[Fact]:
    words = _words(reading)
    keyed = re.findall(
        rf"(?i)avail\w{{0,20}}\s{{0,40}}[:=]?\s{{1,40}}({_NUMBER})"
        r"\s*(kB|KiB|MiB|MB|GiB|GB|[GMk]i?)?\b",
        reading.text,
    )
    suffixed = re.findall(rf"(?<![\w.])({_NUMBER})\s*(kB|KiB|MiB|MB|GiB|GB|[GM]i?)\b", reading.text)
    pairs: list[tuple[str, str]] = keyed or suffixed
    if not pairs:
        pairs = [(one, "") for one in _last_columns(reading.text)]
    if not pairs:
        raise UnusableOutput("no figure of MemAvailable")
    unit = re.search(r"(?i)\b(kB|KiB|MiB|MB|GiB|GB)\b", words)
    numbers = [float(number) for number, _ in pairs]
    told = next((own for _, own in pairs if own), unit[1] if unit else "")
    scale = _scale_gib(told, max(numbers))
    yield MemorySamples(
        available_gib=tuple(number * scale for number in numbers),
        period_s=period_s(words),
    )


def _last_columns(text: str) -> list[str]:
    """Bare numbers: all of one line, or the last of each line where there are several lines."""
    found = [re.findall(rf"(?<![\w.:-]){_NUMBER}(?![\w.:-])", line) for line in text.splitlines()]
    rows = [row for row in found if row]
    if len(rows) <= 1:
        return rows[0] if rows else []
    return [row[-1] for row in rows]


def _scale_gib(unit: str, largest: float) -> float:
    first = unit[:1].lower()
    if not first:
        return 1 / _KB_PER_GIB if largest > _LARGEST_GIB else 1.0
    return {"k": 1 / _KB_PER_GIB, "m": 1 / 1024, "g": 1.0}[first]


_STATES = r"(?i)\b(created|running|paused|restarting|removing|exited|dead|up|missing|absent)\b"


def _states(reading: Reading) -> Iterable[Fact]:
    found = [match[1].lower() for line in reading.text.splitlines()
             if (match := re.search(_STATES, line))]  # fmt: skip
    if not found:
        raise UnusableOutput("no container state in the text")
    states = tuple("running" if state == "up" else state for state in found)
    yield StateSamples(states=states, period_s=period_s(_words(reading)))


def _progress(reading: Reading) -> Iterable[Fact]:
    lines = [line for line in reading.text.splitlines() if line.strip()]
    header = re.search(r"(?i)columns?:\s*(.+)", _words(reading).split(" ; ")[0])
    names = [part.strip().split(" ")[0].lower() for part in header[1].split(",")] if header else []
    if not names and lines and not _numbers(lines[0]):
        names = re.split(r"[\s,;]+", lines[0].strip().lower())
    rows = [row for line in lines if (row := _numbers(line.replace(",", " ")))]
    if not names or not rows:
        raise UnusableOutput("no named columns with figures")
    rows = [row for row in rows if len(row) == len(names)]
    if not rows:
        raise UnusableOutput(f"no line has the {len(names)} columns {', '.join(names)}")
    yield ProgressSamples(columns=tuple(names), rows=tuple(tuple(row) for row in rows))


_METRIC = re.compile(rf"^([A-Za-z_:][\w:]*)(\{{[^}}]*\}})?\s+({_NUMBER})(?:\s+\d+)?\s*$")


def _metrics(reading: Reading) -> Iterable[Fact]:
    scrapes: list[dict[str, float]] = []
    for block in re.split(r"(?m)^[ \t]*(?:--+|==+)[^\n]*$", reading.text):
        scrape: dict[str, float] = {}
        for line in block.splitlines():
            if found := _METRIC.match(line.strip()):
                scrape[found[1]] = scrape.get(found[1], 0.0) + float(found[3])
        if scrape:
            scrapes.append(scrape)
    if not scrapes:
        raise UnusableOutput("no metric in the form of Prometheus")
    between = " ; ".join(re.findall(r"(?m)^[ \t]*(?:--+|==+|#).*$", reading.text))
    yield MetricScrapes(
        scrapes=tuple(scrapes), period_s=period_s(_words(reading)) or period_s(between)
    )


def _canary(reading: Reading) -> Iterable[Fact]:
    values = _numbers(reading.text)
    if not values:
        raise UnusableOutput("no figure")
    best = re.search(rf"(?i)best(?: known| ever)?\s*[:=]?\s*({_NUMBER})", _words(reading))
    yield CanarySamples(ms=tuple(values), best_known_ms=float(best[1]) if best else None)


_REQUEST_ID = re.compile(r"\b(?:rid|request_id|request|req|id)\"?\s*[=:]\s*\"?([\w.-]+)")


def _as_pairs(text: str) -> list[str]:
    """Lines with ``name=value`` words, made of a table with a header where the text is one."""
    lines = [line for line in text.splitlines() if line.strip()]
    names = lines[0].lower().replace(",", " ").split() if lines else []
    if "=" in text or not {"rid", "id", "request_id", "request"} & set(names):
        return lines
    rows = [line.replace(",", " ").split() for line in lines[1:]]
    return [" ".join(f"{n}={v}" for n, v in zip(names, row, strict=False)) for row in rows]


def _requests(reading: Reading) -> Iterable[Fact]:
    found = []
    for line in _as_pairs(reading.text):
        if not (named := _REQUEST_ID.search(line)):
            continue
        age = re.search(rf"\b(?:age|elapsed|running)_?s?\"?\s*[=:]\s*({_NUMBER})", line)
        tokens = re.search(
            r"\b(?:output|generated|completion)_?(?:tokens|len)?\"?\s*[=:]\s*(\d+)", line
        )
        finish = re.search(r"\bfinish(?:_reason|ed)?\"?\s*[=:]\s*\"?(\w+)", line)
        ended = finish[1] if finish and finish[1].lower() not in ("null", "none") else None
        found.append(
            RunningRequest(
                id=named[1],
                age_s=float(age[1]) if age else None,
                output_tokens=int(tokens[1]) if tokens else None,
                finish=ended,
            )
        )
    if not found:
        raise UnusableOutput("no request with an id")
    yield RequestSamples(requests=tuple(found))


def _stream(reading: Reading) -> Iterable[Fact]:
    yield StreamTail(text=streamed_text(reading.text) or reading.text)


READERS: tuple[Reader, ...] = (
    Reader("samples.memory", (MemorySamples,), _memory,
           whats=(r".*\bmem(?:ory)?[ _]?avail\w*\b.*", r"(?:free |available )?memory samples.*")),
    Reader("samples.states", (StateSamples,), _states,
           commands=(r"(?:while|for|until|watch)\b.*\.State\.Status.*",),
           whats=(r".*\b(?:state|status) samples.*", r"container (?:state|status)(?:es|s)?\b.*",)),
    Reader("samples.progress", (ProgressSamples,), _progress,
           whats=(r"(?:rank \d+ |load(?:ing)? |launch )?progress(?: samples)?.*",)),
    Reader("samples.metrics", (MetricScrapes,), _metrics,
           commands=(r"curl\b.*/metrics\b.*", r"wget\b.*/metrics\b.*"),
           whats=(r"(?:GET )?/?(?:engine |server |sglang |vllm )?(?:/?metrics)\b.*",)),
    Reader("samples.canary", (CanarySamples,), _canary, whats=(r".*\bcanary\b.*",)),
    Reader("samples.requests", (RequestSamples,), _requests,
           whats=(r".*\brunning requests?\b.*", r"request samples?.*")),
    Reader("samples.stream", (StreamTail,), _stream,
           whats=(r".*\btail of (?:the |a )?.*\b(?:stream|reply|answer|output|reasoning)\b.*",
                  r"(?:reasoning|answer|reply|output|thinking|generated) (?:stream|tail|text).*",
                  r"stream(?: tail| of .*)?")),
)  # fmt: skip
"""In the order in which they are tried."""
ASKS: tuple[Ask, ...] = ()
