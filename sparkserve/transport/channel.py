"""A command on an SSH channel, as ``pump`` wants it.

Takes the channel as an object with paramiko's methods and knows nothing else of paramiko.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from typing import Any

from sparkserve.transport.pump import Source
from sparkserve.transport.wrapper import SIGNAL_UNKNOWN_CODE

_READ_BYTES = 128 << 10
# One turn takes at most this much, so that input, limits and cancellation get theirs.
_TURN_BYTES = 4 << 20
_NO_STATUS = -1


class ChannelProcess:
    """A command that was just started on a channel of its own.

    alive: whether the connection still carries new channels; asked only when the channel ended
        without an exit status, which a killed shell and a lost connection have in common.
    """

    def __init__(self, channel: Any, *, alive: Callable[[], bool]) -> None:
        self._channel = channel
        self._alive = alive
        self._survived: bool | None = None
        channel.setblocking(0)
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def send(self, data: memoryview) -> int | None:
        """Send input without blocking; None where the command takes no more."""
        channel = self._channel
        if channel.closed or channel.eof_sent:
            return None
        if not channel.send_ready():
            return 0
        try:
            sent: int = channel.send(data)
        except TimeoutError:
            return 0
        except (OSError, EOFError):
            return None
        return sent

    def close_stdin(self) -> None:
        """Send the end of input."""
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def receive(self, wait_s: float) -> list[tuple[Source, bytes]]:
        """Take what has arrived, waiting for the first piece."""
        channel = self._channel
        if not (channel.recv_ready() or channel.recv_stderr_ready()):
            if channel.eof_received or channel.closed:
                # Both streams are at their end; the exit status follows or has come.
                channel.status_event.wait(wait_s)
            else:
                self._poll.poll(wait_s * 1000)
        got: list[tuple[Source, bytes]] = []
        size = 0
        while size < _TURN_BYTES and channel.recv_ready():
            got.append(("stdout", channel.recv(_READ_BYTES)))
            size += len(got[-1][1])
        while size < _TURN_BYTES and channel.recv_stderr_ready():
            got.append(("stderr", channel.recv_stderr(_READ_BYTES)))
            size += len(got[-1][1])
        return got

    @property
    def exit_code(self) -> int | None:
        """The shell's exit code; None while it runs and where the connection was lost."""
        channel = self._channel
        if not channel.status_event.is_set():
            return None
        status: int = channel.exit_status
        if status != _NO_STATUS:
            return status
        if self._survived is None:
            self._survived = self._alive()
        return SIGNAL_UNKNOWN_CODE if self._survived else None

    @property
    def output_ended(self) -> bool:
        """Whether both streams are at their end and taken."""
        channel = self._channel
        ended = channel.eof_received or channel.closed
        return bool(ended) and not (channel.recv_ready() or channel.recv_stderr_ready())

    @property
    def lost(self) -> bool:
        """Whether the channel ended without a status because the connection did."""
        return self._channel.status_event.is_set() and self.exit_code is None
