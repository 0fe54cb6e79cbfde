"""Server-sent events from bytes, however they are cut (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

EVENT_LIMIT_BYTES = 16 << 20
"""A longer event is not one we wait for."""
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SseEvent:
    """One event."""

    data: str
    event: str = "message"


class EventTooLarge(ValueError):
    """An event passed ``EVENT_LIMIT_BYTES`` without an end."""


@dataclass
class SseParser:
    """Feed it the body piece by piece; comments, ids and retry times are left out."""

    _buffer: bytearray = field(default_factory=bytearray)
    _searched_bytes: int = 0
    _skip_line_feed: bool = False
    _at_start: bool = True
    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _data_bytes: int = 0

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Take a piece of the body; events that it completed.

        Raises:
            EventTooLarge: an event without end.
        """
        if self._skip_line_feed and piece:
            # The carriage return that ended the last piece was half of a CR LF.
            piece = piece[1:] if piece[:1] == b"\n" else piece
            self._skip_line_feed = False
        self._buffer += piece
        events: list[SseEvent] = []
        begin = 0
        while match := _LINE_END.search(self._buffer, max(begin, self._searched_bytes)):
            line = bytes(self._buffer[begin : match.start()])
            begin = match.end()
            if match.group() == b"\r" and begin == len(self._buffer):
                self._skip_line_feed = True
            events += self._line(line)
        del self._buffer[:begin]
        self._searched_bytes = len(self._buffer)
        if len(self._buffer) + self._data_bytes > EVENT_LIMIT_BYTES:
            raise EventTooLarge(f"an event of more than {EVENT_LIMIT_BYTES} bytes")
        return events

    def finish(self) -> list[SseEvent]:
        """The body has ended: an event whose closing empty line is missing counts as it is."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return [*(self._line(rest) if rest else []), *self._line(b"")]

    def _line(self, line: bytes) -> list[SseEvent]:
        if self._at_start:
            line, self._at_start = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", errors="replace")
        if name == b"data":
            self._data.append(text)
            self._data_bytes += len(value)
        elif name == b"event":
            self._event = text
        return []

    def _dispatch(self) -> list[SseEvent]:
        events = [SseEvent("\n".join(self._data), self._event or "message")] if self._data else []
        self._data, self._data_bytes, self._event = [], 0, ""
        return events
