"""Texts without a manifest: one file, a pasted text, or a folder whose file names say what is what.

What a text is comes from its name alone; nothing is guessed from its content.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from sparkserve.checks.scene import rank_by_name
from sparkserve.errors import ConfigError
from sparkserve.facts.registry import READERS
from sparkserve.model.diagnosis import Bundle, Unread
from sparkserve.model.reading import Reading
from sparkserve.ops.bundle import NoText, read_inner

_PROC = ("/proc/", "/proc/sys/", "/etc/")
_ENDING = re.compile(r"\.(?:txt|log|out|json|ya?ml|env)$", re.IGNORECASE)
_NUMBER = re.compile(r"^\d{1,3}[-_. ]")


def one_text(text: str, kind: str, node: str | None) -> Reading:
    """A text of which the user says what it is: a path, the words for a kind, or a command line."""
    label = f"{node}: {kind}" if node else kind
    if kind.startswith("/"):
        return Reading(text=text, label=label, node=node, path=kind)
    what = Reading(text=text, label=label, node=node, what=kind)
    return what if _is_known(what) else Reading(text=text, label=label, node=node, command=kind)


def folder_of_texts(folder: Path, node: str | None) -> Bundle:
    """Every file of a folder, and of its folders, which are named after nodes.

    Raises:
        ConfigError: there is no file.
    """
    readings, unread = [], []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith("."):
            continue
        inner = path.relative_to(folder)
        label = str(inner)
        place = inner.parts[0] if len(inner.parts) > 1 else node
        try:
            text = read_inner(folder, path)
        except NoText as error:
            unread.append(Unread(label=label, node=place, reason=str(error)))
            continue
        known = (one for one in _by_name(text, path.name, label, place) if _is_known(one))
        reading = next(known, None)
        if reading is not None:
            readings.append(reading)
        else:
            why = "its name is not that of a text we know; say what it is with --as"
            unread.append(Unread(label=label, node=place, reason=why))
    if not readings and not unread:
        raise ConfigError(f"{folder}: no file there, expected texts or a bundle of doctor --save",
                          hint=f"ls -la {shlex.quote(str(folder))}")  # fmt: skip
    return Bundle(readings=tuple(readings), unread=tuple(unread))


def _by_name(text: str, name: str, label: str, node: str | None) -> Iterator[Reading]:
    """What a file's name may mean, likeliest first; ``spark1-ip-addr.txt`` names a node, too."""
    stem = _NUMBER.sub("", _ENDING.sub("", name))
    first, dash, rest = stem.partition("-")
    stems = [(stem, node)]
    if dash and rest:
        split = (rest, node or first)
        stems = [split, *stems] if rank_by_name(first) is not None else [*stems, split]
    for one, place in stems:
        spaced = re.sub(r"[-_]+", " ", one)
        for command in dict.fromkeys((one, spaced)):
            yield Reading(text=text, label=label, node=place, command=command)
        for what in dict.fromkeys((one, spaced)):
            yield Reading(text=text, label=label, node=place, what=what)
        for root in _PROC:
            yield Reading(text=text, label=label, node=place, path=f"{root}{one}")


def _is_known(reading: Reading) -> bool:
    return any(reader.takes(reading) for reader in READERS)
