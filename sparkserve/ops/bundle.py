"""Support bundles: a folder with ``case.toml`` and one text file per reading.

Whoever reads one judges only its ``[[input]]`` tables. A text that cannot be taken is listed with
its reason and hides no other.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from sparkserve import __version__
from sparkserve.errors import ConfigError
from sparkserve.files import PART_MARK, replace_file, sync_folder
from sparkserve.model.diagnosis import Bundle, Unread
from sparkserve.model.reading import Reading
from sparkserve.ops.mask import mask
from sparkserve.tomlfile import emit_toml, read_toml

MANIFEST = "case.toml"
LIMIT_BYTES = 64 << 20
"""Longest text that is judged: a day of engine logs, far more than any command prints."""
_KNOWN = set(Reading.model_fields) - {"text"}
_SOURCES = ("command", "path", "what")
_VARIABLES = re.compile(rb"(?:[A-Za-z_]\w*=[^\0]*\0)+")
"""``/proc/PID/environ``."""
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
            hint="judge one text: sparkserve doctor --replay FILE --as 'engine log'",
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
    """A text file's content, with plain line ends and without colours; waits at a pipe.

    Single bytes that are not UTF-8, as a crashing engine leaves them, are replaced.

    Raises:
        NoText: missing, unreadable, too long, or not text at all.
    """
    try:
        with path.open("rb") as file:
            return read_stream(file)
    except OSError as error:
        raise NoText(f"cannot read {path.name}: {error.strerror or error}") from error


def read_inner(folder: Path, path: Path) -> str:
    """As ``read_text``, of a file that came within a folder from somebody else.

    Raises:
        NoText: as ``read_text``; a link out of the folder, or what is no plain file.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise NoText(f"{str(path).removeprefix(f'{folder}/')} lies outside the folder")
    if path.exists() and not path.is_file():
        raise NoText(f"cannot read {path.name}: not a plain file")
    return read_text(path)


def read_stream(stream: BinaryIO) -> str:
    """As ``read_text``, of what is open already; reads no more than it may take.

    Raises:
        NoText: too long, or not text at all.
    """
    content = stream.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise NoText(f"longer than {LIMIT_BYTES >> 20} MiB")
    return clean_text(content)


def clean_text(content: bytes) -> str:
    """Bytes as text; see ``read_text``.

    Raises:
        NoText: not text at all.
    """
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if encoding == "utf-8-sig" and b"\0" in content and not _VARIABLES.fullmatch(content):
        raise NoText("not a text: it holds zero bytes")
    text = content.decode(encoding, "replace")
    strange = text.count("\ufffd")
    if strange > 8 and strange * 50 > len(text):
        raise NoText("not UTF-8 text")
    return plain_text(text)


def plain_text(text: str) -> str:
    """A text with plain line ends and without colours, as readers want it."""
    return _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _reading(folder: Path, table: Mapping[str, Any]) -> Reading:
    name = table.get("file")
    if not isinstance(name, str) or not name:
        raise NoText("the table names no file")
    text = read_inner(folder, folder / name)
    known = {key: value for key, value in table.items() if key in _KNOWN}
    return Reading.model_validate({**known, "text": text})


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


def refuse_taken(folder: Path) -> None:
    """Make sure that a bundle can be written there.

    Raises:
        ConfigError: something is there already.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} exists already, expected a new folder", hint=f"ls {shlex.quote(str(folder))}"
        )


def save(folder: Path, bundle: Bundle, now: datetime) -> None:
    """Write a bundle with secrets and names masked: a part folder, then renamed as a whole.

    Raises:
        ConfigError: the folder is taken or cannot be written.
    """
    refuse_taken(folder)
    part = folder.with_name(f"{folder.name}{PART_MARK}{secrets.token_hex(4)}")
    try:
        _write(part, mask(bundle.readings), now)
        part.rename(folder)
        sync_folder(folder.absolute().parent)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, readings: Sequence[Reading], now: datetime) -> None:
    # The mode of mkdir's parents is the umask's, so each is made by itself.
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    (folder / "inputs").mkdir(mode=0o700)
    tables = []
    for number, reading in enumerate(readings, 1):
        name = f"inputs/{number:03d}-{_slug(reading)}.txt"
        replace_file(folder / name, reading.text.encode(), mode=0o600)
        told = reading.model_dump(exclude={"text"}, exclude_defaults=True, exclude_none=True)
        table = {"label": reading.label or reading.source, "file": name, **told}
        tables.append(table | ({} if reading.text else {"empty": True}))
    about = {
        "id": "SAVED",
        "made_by": f"sparkserve {__version__}",
        "saved_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "input": tables,
    }
    replace_file(folder / MANIFEST, emit_toml(about).encode(), mode=0o600)


def _slug(reading: Reading) -> str:
    words = f"{reading.node or ''} {reading.source}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:48].strip("-") or "text"
