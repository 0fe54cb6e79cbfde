"""A listening port on this machine whose connections are carried to somewhere else."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

_READ_BYTES = 64 << 10
_BACKLOG = 16
_JOIN_S = 5.0


class Stream(Protocol):
    """A two-way byte stream: a socket, or an SSH channel, which looks like one."""

    def recv(self, size_bytes: int, /) -> bytes:
        """Read; empty at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Write all."""

    def shutdown(self, how: int, /) -> None:
        """End one direction."""

    def close(self) -> None:
        """End both."""


class Forwarder:
    """Listens on 127.0.0.1 and joins every connection with a freshly opened stream.

    Where the far end cannot be opened, the connection is closed at once, as a refusing server
    would, and ``failure`` says why.
    """

    def __init__(self, open_far: Callable[[], Stream]) -> None:
        self._open_far = open_far
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._streams: set[Stream] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.failure: str | None = None
        self._start(self._accept)

    @property
    def port(self) -> int:
        """Local port on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening and end every connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            streams = list(self._streams)
        # Wakes the accept call, which a plain close would leave waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for stream in streams:
            _end(stream)
        for thread in list(self._threads):
            thread.join(_JOIN_S)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._join, near)

    def _join(self, near: socket.socket) -> None:
        try:
            far = self._open_far()
        except (OSError, EOFError) as error:
            self.failure = str(error) or type(error).__name__
            near.close()
            return
        with self._lock:
            late = self._closed
            self._streams |= {near, far}
        if late:
            _end(near)
            _end(far)
            return
        back = self._start(_carry, far, near)
        _carry(near, far)
        back.join()
        _end(near)
        _end(far)
        with self._lock:
            self._streams -= {near, far}

    def _start(self, work: Callable[..., None], *args: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="forward", daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread


def _carry(source: Stream, target: Stream) -> None:
    """Copy one direction until its end, then tell the other side that it ended."""
    try:
        while data := source.recv(_READ_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):
        # One side went away in the middle: the other learns it by the end of its own stream.
        _end(target)
        _end(source)


def _end(stream: Stream) -> None:
    with contextlib.suppress(OSError, EOFError):
        stream.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError, EOFError):
        stream.close()
