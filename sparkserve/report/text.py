"""Styled text without a terminal library: spans, lines, and their form with and without colour.

A line must mean the same without its styles: colour only repeats what the words say.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal, NamedTuple

Style = Literal["", "bold", "dim", "good", "warn", "bad", "name"]

_ANSI: dict[Style, str] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "31;1",
    "name": "36",
}
# CSI and OSC sequences, other two-character escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# `[2026-11-30 18:16:05 TP0] ` of SGLang and bare ISO times.
_STAMP = re.compile(r"^(?:\[\d{4}-\d\d-\d\d[^\]]*\]|\d{4}-\d\d-\d\d[ T][\d:.,]+\S*)\s*")
_LABEL = re.compile(r" *\S+ {2,}")
"""A word and a gap at the beginning of a line: what follows it stands in a column."""
ELLIPSIS = "…"


class Span(NamedTuple):
    """A piece of a line in one style."""

    text: str
    style: Style = ""


Part = str | Span


class Line(tuple[Span, ...]):
    """One line: spans in order, no line break."""

    __slots__ = ()

    @property
    def plain(self) -> str:
        """The words alone."""
        return "".join(span.text for span in self)

    @property
    def ansi(self) -> str:
        """The line with escape sequences of its styles."""
        return "".join(
            f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if style and text else text for text, style in self
        )


class Pasted(Line):
    """A line with a command in it: it must survive copying, so it is never broken."""

    __slots__ = ()


def line(*parts: Part) -> Line:
    """Make a line of pieces."""
    return Line(part if isinstance(part, Span) else Span(part) for part in parts)


def pasted(*parts: Part) -> Pasted:
    """Make a line that is never broken."""
    return Pasted(line(*parts))


def paragraph(text: str, *, indent: int = 0, style: Style = "") -> list[Line]:
    """The lines of a text that may hold line breaks, made safe for a terminal."""
    return [line(" " * indent, Span(one, style)) for one in clean(text).split("\n")]


def clean(text: str) -> str:
    """Text from elsewhere without anything that moves a cursor or colours a screen.

    Of a line that overwrites itself with carriage returns (a progress bar) the last state
    remains; tabs become spaces; line breaks stay.
    """
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    lines = (one.rstrip("\r").rpartition("\r")[2] for one in text.split("\n"))
    return _CONTROLS.sub("", "\n".join(lines)).replace("\t", "    ")


def one_line(text: str) -> str:
    """Text from elsewhere as a single line, made safe for a terminal."""
    return " ".join(part for part in clean(text).split("\n") if part.strip()).strip()


def without_stamp(text: str) -> str:
    """A log line without the time at its beginning: of the newest line it says nothing."""
    return _STAMP.sub("", text)


def cells(text: str) -> int:
    """Columns that a text takes on a terminal; wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(character) for character in text)


def cut(text: str, width: int) -> str:
    """The text within ``width`` columns, with an ellipsis where something is missing."""
    if cells(text) <= width:
        return text
    kept: list[str] = []
    used = 0
    for character in text:
        used += _cells_of(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept).rstrip() + (ELLIPSIS if width > 0 else "")


def cut_line(parts: Iterable[Span], width: int) -> Line:
    """A line within ``width`` columns."""
    kept: list[Span] = []
    left = width
    for span in parts:
        if cells(span.text) > left:
            kept.append(Span(cut(span.text, left), span.style))
            break
        kept.append(span)
        left -= cells(span.text)
    return Line(kept)


def wrap(one: Line, width: int) -> list[Line]:
    """A line broken between words where it is wider than ``width``; a long word stays whole.

    The rest is indented to the column in which the text begins.
    """
    plain = one.plain
    if isinstance(one, Pasted) or cells(plain) <= width:
        return [one]
    label = _LABEL.match(plain)
    blanks = len(plain) - len(plain.lstrip(" "))
    hang = label.end() if label and label.end() < width // 2 else blanks + 2
    lines: list[Line] = []
    begin, indent = 0, 0
    while cells(plain[begin:]) > width - indent:
        end = _break(plain, begin, width - indent, least=hang if not lines else 0)
        shown = begin + len(plain[begin:end].rstrip(" "))
        lines.append(line(" " * indent, *_slice(one, begin, shown)))
        begin = len(plain) - len(plain[end:].lstrip(" "))
        indent = hang
    return [*lines, line(" " * indent, *_slice(one, begin, len(plain)))] if plain[begin:] else lines


def wrapped(lines: Iterable[Line], width: int | None) -> list[Line]:
    """Each line as ``wrap`` breaks it; None = nothing needs to be broken."""
    return list(lines) if width is None else [part for one in lines for part in wrap(one, width)]


def _break(plain: str, begin: int, room: int, *, least: int) -> int:
    """Where to end a line: at the last blank within the room, else at the first one behind it."""
    blanks = [i for i in range(begin + least + 1, len(plain)) if plain[i] == " "]
    within = [i for i in blanks if cells(plain[begin:i]) <= room]
    return within[-1] if within else blanks[0] if blanks else len(plain)


def _slice(one: Line, begin: int, end: int) -> list[Span]:
    spans, at = [], 0
    for text, style in one:
        part = text[max(0, begin - at) : max(0, end - at)]
        at += len(text)
        if part:
            spans.append(Span(part, style))
    return spans


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
