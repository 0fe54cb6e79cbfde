"""Sizes of files, and what they take on the disk, as stat, ls, du and find print them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.model.base import Model

_MOST_LINES = 20_000
_LINE_CHARS = 4_200
_DIRECTIVE = re.compile(r"%[-0-9#]{0,6}([A-Za-z%])")
_NAMES, _KEEP = "nNpPf", "sbBk"
_LS = re.compile(
    r"\s*(?:([0-9]{1,15})\s+)?-[rwxsStT-]{9}[.+@]?\s+[0-9]+\s+\S+\s+\S+\s+([0-9]{1,19})\s+"
    r"\S+\s+\S+\s+(?:\S+\s+)?(\S[^\n]*)"
)
_STAT_FILE = re.compile(r"\s*(?:File|Datei|Fichier)\s?: [‘'\"`]?(.+?)[’'\"]?\s*")
_STAT_SIZE = re.compile(r"\s*\w[\wß]*\s?: ([0-9]{1,19})\s+\w[\wö]*\s?: ([0-9]{1,19})\s.*")


class FileSize(Model):
    """One file; None = the listing does not tell."""

    name: str
    size_bytes: int | None = None
    allocated_bytes: int | None = None
    """What it takes on the disk; less than the size where it has holes."""


def sizes_of(command: str, text: str) -> tuple[FileSize, ...]:
    """Files of a listing in its order; lines of another form are passed over.

    command: the command line; its format string says what stands where.
    """
    lines = [line[:_LINE_CHARS] for line in text.splitlines()[:_MOST_LINES]]
    if form := _format(command):
        return tuple(_formatted(lines, form, block_bytes=512))
    if re.search(r"\bdu\b", command):
        return tuple(_du(lines, command))
    if re.search(r"\bstat\b", command):
        return tuple(_stat(lines))
    return tuple(_ls(lines))


def _format(command: str) -> str | None:
    """The format string of ``stat`` or of ``find -printf``; None where there is none."""
    found = re.search(
        r"(?:-c|--format|--printf|-printf)[ =]?(?:'([^']*)'|\"([^\"]*)\"|(\S+))", command
    )
    return next((one for one in found.groups() if one is not None), None) if found else None


def _formatted(lines: list[str], form: str, *, block_bytes: int) -> Iterator[FileSize]:
    pattern, fields = _pattern(form)
    if pattern is None:
        return
    for line in lines:
        match = pattern.fullmatch(line.strip())
        if match is None:
            continue
        values = dict(zip(fields, match.groups(), strict=True))
        figures = {key: int(text) for key, text in values.items() if key in _KEEP}
        blocks = figures.get("b")
        allocated = None if blocks is None else blocks * figures.get("B", block_bytes)
        if "k" in figures:
            allocated = figures["k"] * 1024
        name = values["name"].strip("'\"")
        yield FileSize(name=name, size_bytes=figures.get("s"), allocated_bytes=allocated)


def _pattern(form: str) -> tuple[re.Pattern[str] | None, list[str]]:
    """What a line of a format looks like, and which field each group is."""
    form = form.replace("\\n", "").replace("\\t", "\t").strip()
    fields: list[str] = []
    pieces, place = [], 0
    for directive in _DIRECTIVE.finditer(form):
        pieces.append(_literal(form[place : directive.start()]))
        place = directive.end()
        letter = directive[1]
        if letter in _NAMES and "name" not in fields:
            pieces.append(r"(\S[^\n]{0,4096}?)")
            fields.append("name")
        elif letter in _KEEP and letter not in fields:
            pieces.append(r"([0-9]{1,19})")
            fields.append(letter)
        else:
            pieces.append(r"\S{1,300}")
    pieces.append(_literal(form[place:]))
    if "name" not in fields or len(fields) < 2 or len(pieces) > 16:
        return None, fields
    return re.compile("".join(pieces)), fields


def _literal(text: str) -> str:
    return re.sub(r"(?:\\ |\\\t|\s)+", r"\\s+", re.escape(text))


def _ls(lines: list[str]) -> Iterator[FileSize]:
    for line in lines:
        if match := _LS.fullmatch(line):
            blocks = None if match[1] is None else int(match[1]) * 1024
            yield FileSize(name=match[3].strip(), size_bytes=int(match[2]), allocated_bytes=blocks)


def _stat(lines: list[str]) -> Iterator[FileSize]:
    name = None
    for line in lines:
        if file := _STAT_FILE.fullmatch(line):
            name = file[1]
        elif name and (size := _STAT_SIZE.fullmatch(line)):
            yield FileSize(name=name, size_bytes=int(size[1]), allocated_bytes=int(size[2]) * 512)
            name = None


def _du(lines: list[str], command: str) -> Iterator[FileSize]:
    apparent = re.search(r" -\w*b|--apparent-size|--bytes", command) is not None
    unit = 1 if re.search(r" -\w*b\b|--bytes|-B ?1\b|--block-size=1\b", command) else 1024
    for line in lines:
        if match := re.fullmatch(r"\s*([0-9]{1,19})\s+(\S[^\n]*?)\s*", line):
            size = int(match[1]) * unit
            yield FileSize(
                name=match[2],
                size_bytes=size if apparent else None,
                allocated_bytes=None if apparent else size,
            )
