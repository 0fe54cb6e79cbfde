"""Drive one running process: feed its stdin, take its output, mind limits and cancellation.

Knows nothing of SSH or local processes: both offer the same small ``Process`` protocol.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sparkserve.transport.wrapper import KILL_AFTER_S

Source = Literal["stdout", "stderr"]
OUTPUT_LIMIT_BYTES = 32 << 20
"""Most output that is kept in memory for one command; bulk data travels in files."""
LINE_LIMIT_BYTES = 1 << 20
"""A longer line is handed over in pieces."""
_TAIL_BYTES = 64 << 10
_SEND_BYTES = 32 << 10
# How often cancellation and deadlines are looked at while nothing arrives.
_TICK_S = 0.1
# The same while there is input that could not be sent yet.
_SOON_S = 0.005
# The wrapper's own limit comes first; this is for a node that does not answer any more.
_LATE_S = 2 * KILL_AFTER_S + 3
# After the program's end its children may still hold stdout open; they are not waited for.
_DRAIN_S = 1.0


class OutputTooLarge(Exception):
    """More than ``OUTPUT_LIMIT_BYTES`` of output; the process is being ended."""


class Process(Protocol):
    """A started process with three streams."""

    def send(self, data: memoryview) -> int | None:
        """Give it input without blocking; bytes taken (0 = later), None = it takes no more."""

    def close_stdin(self) -> None:
        """Say that no input follows; without input this cuts the lifeline."""

    def receive(self, wait_s: float) -> list[tuple[Source, bytes]]:
        """Output that arrived, after at most ``wait_s`` of waiting."""

    @property
    def exit_code(self) -> int | None:
        """The shell's exit code, None while it runs."""

    @property
    def output_ended(self) -> bool:
        """Whether both output streams are at their end and taken."""

    @property
    def lost(self) -> bool:
        """Whether the connection to it is gone."""


class Sink(Protocol):
    """Takes output as it comes."""

    stdout: bytearray
    """What of stdout is kept for the result."""
    stderr: bytearray

    def take(self, source: Source, data: bytes) -> None:
        """Take a piece of one stream."""


@dataclass
class Collector:
    """Keeps both streams whole, up to the limit."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def take(self, source: Source, data: bytes) -> None:
        """Keep a piece.

        Raises:
            OutputTooLarge: the stream has passed the limit.
        """
        buffer = self.stdout if source == "stdout" else self.stderr
        buffer += data
        if len(buffer) > OUTPUT_LIMIT_BYTES:
            raise OutputTooLarge


@dataclass
class Lines:
    """Hands over stdout line by line and keeps the end of stderr."""

    on_line: Callable[[str], None]
    stdout: bytearray = field(default_factory=bytearray)
    """Stays empty."""
    stderr: bytearray = field(default_factory=bytearray)
    _rest: bytearray = field(default_factory=bytearray)

    def take(self, source: Source, data: bytes) -> None:
        """Cut a piece into lines; an unfinished line waits for its rest."""
        if source == "stderr":
            self.stderr += data
            del self.stderr[:-_TAIL_BYTES]
            return
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._give(line)
        while len(self._rest) >= LINE_LIMIT_BYTES:
            self._give(self._rest[:LINE_LIMIT_BYTES])
            del self._rest[:LINE_LIMIT_BYTES]

    def finish(self) -> None:
        """Hand over a last line that no line break ended."""
        if self._rest:
            self._give(self._rest)
            self._rest = bytearray()

    def _give(self, line: bytes | bytearray) -> None:
        self.on_line(line.decode("utf-8", errors="replace").removesuffix("\r"))


@dataclass(frozen=True)
class Order:
    """One command for one node."""

    node: str
    argv: Sequence[str]
    stdin: bytes | None = None
    """None = no input, so that stdin can be the lifeline; empty input is not None."""
    limit_s: float | None = None
    cancel: threading.Event | None = None


@dataclass(frozen=True)
class Ending:
    """How a process came to its end."""

    how: Literal["exited", "lost", "late", "cancelled"]
    """``exited``: by itself or by the wrapper's limit; ``late``: not at all, though limit and
    grace have passed; ``cancelled``: at the caller's wish."""
    code: int | None
    """The shell's exit code where one arrived."""
    elapsed_s: float


def pump(process: Process, sink: Sink, order: Order) -> Ending:
    """Drive a process to its end; whoever called closes it afterwards.

    Raises:
        OutputTooLarge: from the sink.
    """
    started = time.monotonic()
    feeder = _Feeder(process, order.stdin or b"")
    cancelled_at = exited_at = math.inf

    def ending(how: Literal["exited", "lost", "late", "cancelled"]) -> Ending:
        return Ending(how, process.exit_code, time.monotonic() - started)

    while True:
        waiting = feeder.step()
        for source, data in process.receive(_SOON_S if waiting == "soon" else _TICK_S):
            sink.take(source, data)
        now = time.monotonic()
        if process.exit_code is not None:
            exited_at = min(exited_at, now)
            if process.output_ended or now - exited_at > _DRAIN_S:
                return ending("exited" if cancelled_at == math.inf else "cancelled")
        elif process.lost:
            return ending("lost")
        if cancelled_at == math.inf and order.cancel is not None and order.cancel.is_set():
            cancelled_at = now
            process.close_stdin()
        if now - cancelled_at > _LATE_S:
            return ending("cancelled")
        if order.limit_s is not None and now - started > order.limit_s + _LATE_S:
            return ending("late")


class _Feeder:
    """Sends input in pieces between the reads, so that neither side waits for the other."""

    def __init__(self, process: Process, stdin: bytes) -> None:
        self._process = process
        self._rest = memoryview(stdin)
        self._open = bool(stdin)

    def step(self) -> Literal["soon", "idle"]:
        """Send what can be sent now; ``soon`` while there is more."""
        while self._open:
            sent = self._process.send(self._rest[:_SEND_BYTES])
            if sent == 0:
                return "soon"
            self._rest = self._rest[sent:] if sent else self._rest[:0]
            if not self._rest:
                self._open = False
                self._process.close_stdin()
        return "idle"
