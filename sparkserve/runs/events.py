"""events.ndjson: append-only, one line per event, one write call per line."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sparkserve.errors import ConfigError
from sparkserve.model.event import Event


class EventWriter:
    """An Observer that appends every event to a file as it happens.

    Thread-safe. Each line goes out in one write call, so two processes that append to the same
    file never mix within a line. A failed write (full disk) is counted, not raised: losing a
    log line must not end a launch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        """Why the first lost event was lost; None while all went well."""
        self.lost_events = 0
        self._lock = threading.Lock()
        self._torn = False
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
        self._torn = _ends_in_the_middle(path)

    def event(self, event: Event) -> None:
        """Append one event; never raises."""
        line = event.model_dump_json().encode() + b"\n"
        with self._lock:
            if self._descriptor < 0:
                self._lose("the event log is closed")
                return
            if self._torn:
                line = b"\n" + line
            try:
                written = os.write(self._descriptor, line)
            except OSError as error:
                self._lose(error.strerror or str(error))
                return
            self._torn = 0 < written < len(line) or (self._torn and written == 0)
            if written < len(line):
                self._lose("No space left for a whole line")

    def close(self) -> None:
        """Sync and close the file; later events are counted as lost."""
        with self._lock:
            if self._descriptor < 0:
                return
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.fsync(descriptor)
            except OSError as error:
                self.failure = self.failure or error.strerror or str(error)
            finally:
                os.close(descriptor)

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lose(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.lost_events += 1


@dataclass(frozen=True)
class EventHistory:
    """What an event file holds."""

    events: tuple[Event, ...]
    problems: tuple[str, ...] = ()
    """Lines that could not be read, such as a last one that a crash cut short."""


def read_events(path: Path) -> EventHistory:
    """Read an event file; damaged lines are reported beside the good ones.

    A missing file is an empty history.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return EventHistory(())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    # What follows the last line break is a line that was never finished.
    unfinished = lines.pop()
    events: list[Event] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            events.append(Event.model_validate_json(line))
        except ValidationError as error:
            problems.append(f"{path} line {number}: {error.errors()[0]['msg']}")
    if unfinished:
        problems.append(
            f"{path} line {len(lines) + 1}: cut short after {len(unfinished)} bytes; "
            "the writer ended in the middle of it"
        )
    return EventHistory(tuple(events), tuple(problems))


def _ends_in_the_middle(path: Path) -> bool:
    with path.open("rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"
