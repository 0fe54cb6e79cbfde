"""Support bundles: a folder with ``case.toml`` and one text file per reading.

Whoever reads one judges only its ``[[input]]`` tables. A text that cannot be taken is listed with
its reason and hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkserve.errors import ConfigError
from sparkserve.model.diagnosis import Bundle, Unread
from sparkserve.model.reading import Reading
from sparkserve.tomlfile import read_toml

MANIFEST = "case.toml"
LIMIT_BYTES = 64 << 20
"""Longest text that is judged: a day of engine logs, far more than any command prints."""
_KNOWN = set(Reading.model_fields) - {"text"}
_SOURCES = ("command", "path", "what")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class NoText(ValueError):
    """Why a file's content cannot be judged."""


def load(folder: Path) -> Bundle:
    """The readings of a folder, in the order of its ``[[input]]`` tables.

    Keys of a table that are not a reading's are ignored.

    Raises:
        ConfigError: no such folder, no usable ``case.toml``, or not one table in it.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise ConfigError(
            f"{folder}: no {MANIFEST} there, expected a folder of sparkserve doctor --save",
            hint="judge one text: sparkserve doctor --replay FILE --what 'engine log'",
        )
    tables = read_toml(manifest).get("input")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{manifest}: no [[input]] table, expected one for every text")
    readings, unread = [], []
    for number, table in enumerate(tables, 1):
        if not isinstance(table, Mapping):
            raise ConfigError(f"{manifest}: input {number} is no table")
        try:
            readings.append(_reading(folder, table))
        except (NoText, ValidationError) as error:
            unread.append(_unread(table, number, error))
    return Bundle(readings=tuple(readings), unread=tuple(unread))


def read_text(path: Path) -> str:
    """A text file's content, with plain line ends and without colours.

    Single bytes that are not UTF-8, as a crashing engine leaves them, are replaced.

    Raises:
        NoText: missing, unreadable, too long, or not text at all.
    """
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise NoText(f"longer than {LIMIT_BYTES >> 20} MiB")
        return clean_text(path.read_bytes())
    except OSError as error:
        raise NoText(f"cannot read {path.name}: {error.strerror or error}") from error


def clean_text(content: bytes) -> str:
    """Bytes as text; see ``read_text``.

    Raises:
        NoText: not text at all.
    """
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if encoding == "utf-8-sig" and b"\0" in content:
        raise NoText("not a text: it holds zero bytes")
    text = content.decode(encoding, "replace")
    strange = text.count("\ufffd")
    if strange > 8 and strange * 50 > len(text):
        raise NoText("not UTF-8 text")
    return _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _reading(folder: Path, table: Mapping[str, Any]) -> Reading:
    name = table.get("file")
    if not isinstance(name, str) or not name:
        raise NoText("the table names no file")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise NoText(f"{name} lies outside the folder")
    known = {key: value for key, value in table.items() if key in _KNOWN}
    return Reading.model_validate({**known, "text": read_text(path)})


def _unread(table: Mapping[str, Any], number: int, error: ValueError) -> Unread:
    def text(key: str) -> str | None:
        value = table.get(key)
        return value if isinstance(value, str) else None

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
    else:
        reason = str(error)
    sources = {key: text(key) for key in _SOURCES}
    named = text("label") or text("file") or f"input {number}"
    return Unread(label=named, node=text("node"), reason=reason, **sources)
