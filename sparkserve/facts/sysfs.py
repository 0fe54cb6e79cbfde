"""Files below /sys as texts show them, and what a missing tool or file looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.model.reading import Reading

# A PCI address holds colons itself; any other part of a path ends at one.
_LINE = re.compile(
    r"^(/sys(?:/(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d|pci[0-9a-f]{4}:[0-9a-f]{2}|[^/:\s]+))+)"
    r":\s*(.*?)\s*$"
)
_HEADING = re.compile(r"^==> (/sys/\S+) <==$")
_ABSENT = re.compile(
    r"command not found|not found$|No such file or directory|is not recognized|"
    r"Befehl nicht gefunden|commande introuvable|orden no encontrada|Datei oder Verzeichnis nicht",
    re.MULTILINE,
)


_BEFORE = r"""(?:ssh (?:-\S+ (?:\S+=\S+ )?)*\S+ ["']?)?(?:sudo (?:-\S+ )*(?:/\S*/)?)?"""


def wherever(*commands: str) -> tuple[str, ...]:
    """Regular expressions for commands, also with ``sudo`` or ``ssh NODE`` before them."""
    return tuple(_BEFORE + command for command in commands)


def is_absent(reading: Reading) -> bool:
    """Whether the tool or file is not there: nothing was said, neither good nor bad.

    A text of more than three lines is an answer even where one line of it complains.
    """
    if reading.rc == 127:
        return True
    lines = reading.text.strip().splitlines()
    return 0 < len(lines) <= 3 and all(_ABSENT.search(line) for line in lines)


def files(reading: Reading) -> Iterator[tuple[str, str]]:
    """(path, value) of every file in the text.

    Understood are ``path: value`` lines, also without the blank, the headings of ``head`` and
    ``tail``, and a bare value where the reading names exactly one file.
    """
    heading = None
    for line in reading.text.splitlines():
        if found := _HEADING.match(line.strip()):
            heading = found[1]
        elif found := _LINE.match(line.strip()):
            yield found[1], found[2]
        elif heading is not None and line.strip():
            yield heading, line.strip()
        elif (path := _one_file(reading)) and line.strip():
            yield path, line.strip()


def _one_file(reading: Reading) -> str | None:
    named = re.findall(r"/sys/\S+", reading.source)
    if len(named) != 1 or re.search(r"[*?{\[]|\.\.\.", named[0]):
        return None
    return str(named[0]).strip("'\"")
