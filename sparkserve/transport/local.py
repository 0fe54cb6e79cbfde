"""This machine as a Host: the only place of the product that starts processes.

Same meaning as over SSH: the same wrapper, the same limits, the same results.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sparkserve.errors import RemoteError
from sparkserve.files import replace_file
from sparkserve.transport.commands import Commands
from sparkserve.transport.host import Result
from sparkserve.transport.pump import (
    Order,
    OutputTooLarge,
    Sink,
    Source,
    pump,
)
from sparkserve.transport.results import no_space, nothing_of, result_of, too_much
from sparkserve.transport.wrapper import KILL_AFTER_S, wrapped

_READ_BYTES = 64 << 10
# Once a second: a little longer than the wrapper's own way to SIGKILL.
_ASK_TIMES = KILL_AFTER_S + 2


@dataclass(frozen=True)
class LocalPort:
    """A port of this machine, which needs no forwarding."""

    port: int

    def close(self) -> None:
        """Nothing to stop."""


class LocalHost(Commands):
    """Runs commands on this machine; safe to use from several threads.

    Each command has a session of its own, so a cancelled or timed-out one is ended with all
    its children, and one whose controller dies is ended by the wrapper's lifeline.
    """

    def __init__(self, name: str = "local") -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The node's name in the cluster file."""
        return self._name

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        """Write a file: part name, fsync, rename; parents are created.

        Raises:
            RemoteError: no space, no permission; the old file is intact.
            ValueError: the path is not absolute.
        """
        if not path.startswith("/"):
            raise ValueError(f"put needs an absolute path, got {path!r}")
        try:
            replace_file(Path(path), content, mode=mode)
        except OSError as error:
            reason = error.strerror or str(error)
            result = Result(self._name, f"put {path}", "exited", error.errno, "", reason, 0.0)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_space(self._name, path, result) from error
            raise RemoteError(
                self._name,
                f"cannot write {path}: {reason}",
                result=result,
                hint=f"ls -ld {Path(path).parent}",
            ) from error

    def forward(self, remote_port: int) -> LocalPort:
        """The port itself: this machine's loopback is here."""
        return LocalPort(remote_port)

    def close(self) -> None:
        """Nothing to close."""

    def _drive(self, order: Order, sink: Sink) -> Result:
        argv = wrapped(order.argv, limit_s=order.limit_s, takes_input=order.stdin is not None)
        try:
            process = _LocalProcess(argv)
        except OSError as error:
            return nothing_of(order, "exited", f"cannot start it: {error.strerror or error}")
        try:
            if order.stdin == b"":
                process.close_stdin()
            ending = pump(process, sink, order)
        except OutputTooLarge as error:
            raise too_much(order) from error
        finally:
            process.end()
        return result_of(order, sink, ending)


class PipedSocket(socket.socket):
    """A command whose stdin and stdout are the two directions of a socket (ProxyCommand).

    Closing it ends the command.
    """

    def __init__(self, command: str) -> None:
        near, far = socket.socketpair()
        super().__init__(fileno=near.detach())
        with far:
            self._popen = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def close(self) -> None:
        """Close the socket and end the command."""
        super().close()
        self._popen.terminate()
        try:
            self._popen.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class _LocalProcess:
    """A subprocess with non-blocking pipes, as ``pump`` wants it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._popen = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._selector = selectors.DefaultSelector()
        self._stdin: IO[bytes] | None = self._popen.stdin
        self._add(self._popen.stdout, "stdout")
        self._add(self._popen.stderr, "stderr")
        if self._stdin is not None:
            os.set_blocking(self._stdin.fileno(), False)

    def _add(self, stream: IO[bytes] | None, source: Source) -> None:
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, source)

    def send(self, data: memoryview) -> int | None:
        if self._stdin is None:
            return None
        try:
            return os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            # The program does not want the rest of its input; its exit code says more.
            self.close_stdin()
            return None

    def close_stdin(self) -> None:
        if self._stdin is not None:
            stdin, self._stdin = self._stdin, None
            stdin.close()

    def receive(self, wait_s: float) -> list[tuple[Source, bytes]]:
        if not self._selector.get_map():
            # Output has ended, the program may not have: wait for it instead.
            self._wait(wait_s)
            return []
        got: list[tuple[Source, bytes]] = []
        for key, _ in self._selector.select(wait_s):
            data = os.read(key.fd, _READ_BYTES)
            if data:
                got.append((key.data, data))
            else:
                self._selector.unregister(key.fileobj)
        return got

    @property
    def exit_code(self) -> int | None:
        code = self._popen.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def output_ended(self) -> bool:
        return not self._selector.get_map()

    @property
    def lost(self) -> bool:
        return False

    def end(self) -> None:
        """Leave nothing behind: cut the lifeline, ask the wrapper, then end the session."""
        self.close_stdin()
        for _ in range(_ASK_TIMES):
            if self._popen.poll() is not None:
                break
            self._popen.send_signal(signal.SIGTERM)
            self._wait(1.0)
        else:
            self._kill_session()
            self._popen.wait()
        self._selector.close()
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None:
                stream.close()

    def _kill_session(self) -> None:
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It ended between the look and the signal.
            return

    def _wait(self, seconds: float) -> None:
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return
