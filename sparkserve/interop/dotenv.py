"""A strict reader of ``.env`` files that were written to be sourced by a shell.

Never runs anything: a value that would need a command or an unknown variable is handed over as
unresolved, with the reason, for the importer to report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkserve.errors import ConfigError

_HEAD = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=")
_REFERENCE = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(:?-([^${}`\\]*))?\})"
)
_ESCAPED_IN_QUOTES = '$`"\\'


@dataclass(frozen=True)
class Setting:
    """One assignment."""

    key: str
    value: str
    line: int
    unresolved: str | None = None
    """Why the value could not be known without a shell; ``value`` is empty then."""


def parse_dotenv(text: str, *, where: str) -> list[Setting]:
    """Read all assignments in order; a key set twice comes twice.

    text: with or without byte order mark, LF or CR LF. where: the file's name for messages.

    Raises:
        ConfigError: a line is neither an assignment nor a comment, a quote is not closed, or
            something follows the value; names the line.
    """
    scanner = _Scanner(text.removeprefix("\ufeff").replace("\r\n", "\n"), where)
    known: dict[str, str] = {}
    settings = []
    while (setting := scanner.next_setting(known)) is not None:
        settings.append(setting)
        known.pop(setting.key, None)
        if setting.unresolved is None:
            known[setting.key] = setting.value
    return settings


class _Unresolved(Exception):
    """A value needs a shell; the message says what for."""


class _Scanner:
    """Walks through the text one assignment at a time."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._place = 0

    def next_setting(self, known: Mapping[str, str]) -> Setting | None:
        """The next assignment; None at the end. ``known``: values of earlier ones."""
        self._skip_blank_lines()
        if self._place >= len(self._text):
            return None
        line = self._line()
        match = _HEAD.match(self._text, self._place)
        if match is None:
            raise self._error(line, f"{self._rest_of_line()!r} is no KEY=VALUE")
        self._place = match.end()
        word, reason = self._word(line, known)
        self._end_of_line(line, match[1])
        return Setting(match[1], "" if reason else word, line, reason)

    def _word(self, line: int, known: Mapping[str, str]) -> tuple[str, str | None]:
        """The value as a shell would see it, and why it is unknown where it is."""
        parts: list[str] = []
        reason: str | None = None
        while self._place < len(self._text) and (char := self._text[self._place]) not in " \t\n":
            if char == "'":
                parts.append(self._until_quote(line))
                continue
            quoted = char == '"'
            self._place += quoted
            raw = self._double_quoted(line) if quoted else self._plain()
            try:
                parts.append(_expanded(raw, known))
            except _Unresolved as error:
                reason = reason or str(error)
        return "".join(parts), reason

    def _until_quote(self, line: int) -> str:
        end = self._text.find("'", self._place + 1)
        if end < 0:
            raise self._error(line, "a quote ' is not closed")
        inner = self._text[self._place + 1 : end]
        self._place = end + 1
        return inner

    def _double_quoted(self, line: int) -> list[tuple[str, bool]]:
        """Characters up to the closing quote, each with whether a backslash protected it."""
        chars: list[tuple[str, bool]] = []
        while self._place < len(self._text):
            char = self._text[self._place]
            follower = self._text[self._place + 1 : self._place + 2]
            if char == '"':
                self._place += 1
                return chars
            if char == "\\" and follower == "\n":
                self._place += 2
            elif char == "\\" and follower and follower in _ESCAPED_IN_QUOTES:
                chars.append((follower, True))
                self._place += 2
            else:
                chars.append((char, False))
                self._place += 1
        raise self._error(line, 'a quote " is not closed')

    def _plain(self) -> list[tuple[str, bool]]:
        chars: list[tuple[str, bool]] = []
        while self._place < len(self._text) and (char := self._text[self._place]) not in " \t\n'\"":
            follower = self._text[self._place + 1 : self._place + 2]
            if char == "\\" and follower:
                # A backslash before a line break joins the lines.
                chars += [] if follower == "\n" else [(follower, True)]
                self._place += 2
            else:
                chars.append((char, False))
                self._place += 1
        return chars

    def _end_of_line(self, line: int, key: str) -> None:
        rest = self._rest_of_line()
        tail = rest.strip(" \t")
        # As in a shell, a # begins a comment only after white space.
        if tail and not (tail.startswith("#") and rest[0] in " \t"):
            raise self._error(
                line, f"something follows the value of {key}; put the value in quotes"
            )
        self._place += len(rest)

    def _skip_blank_lines(self) -> None:
        while self._place < len(self._text):
            rest = self._rest_of_line()
            tail = rest.lstrip(" \t")
            if tail and not tail.startswith("#"):
                self._place += len(rest) - len(tail)
                return
            self._place += len(rest) + 1

    def _rest_of_line(self) -> str:
        return self._text[self._place :].partition("\n")[0]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._place) + 1

    def _error(self, line: int, problem: str) -> ConfigError:
        return ConfigError(f"{self._where} line {line}: {problem}")


def _expanded(chars: list[tuple[str, bool]], known: Mapping[str, str]) -> str:
    """Replace references to keys that the file itself has set before.

    Raises:
        _Unresolved: a command, or a variable that the file does not set.
    """
    # Protected characters are kept out of the pattern's sight in a private-use plane.
    text = "".join(chr(0xF0000 + ord(char)) if safe else char for char, safe in chars)

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in known and (known[name] or not (match[3] or "").startswith(":")):
            return known[name]
        if match[3] is not None:
            return match[4]
        raise _Unresolved(f"it refers to ${name}, which the file does not set before")

    if "`" in text or "$(" in text:
        raise _Unresolved("it runs a command")
    replaced = _REFERENCE.sub(value, text)
    if "$" in _REFERENCE.sub("", text):
        raise _Unresolved("it needs a shell to be expanded")
    return "".join(chr(ord(c) - 0xF0000) if 0xF0000 <= ord(c) < 0xF0080 else c for c in replaced)
