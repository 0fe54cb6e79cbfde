"""What running a command means on every kind of host; the kinds differ in how one is driven."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from sparkserve.transport.host import Result
from sparkserve.transport.pump import Collector, Lines, Order, Sink


class Commands(ABC):
    """The command half of the Host protocol."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The node's name in the cluster file."""

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float) -> Result:
        """Run a program to its end.

        Raises:
            RemoteError: it wrote more than ``pump.OUTPUT_LIMIT_BYTES``.
            ValueError: the argv is empty, holds a NUL byte, or is too long for the host.
        """
        data = None if stdin is None else stdin.encode()
        return self._drive(Order(self.name, argv, data, timeout_s), Collector())

    def script(self, text: str, *, timeout_s: float) -> Result:
        """Run a POSIX shell script that travels on stdin.

        It is read whole before it begins, so a command in it cannot swallow the rest.
        """
        return self.run(["sh", "-c", 'eval "$(cat)"'], stdin=text, timeout_s=timeout_s)

    def stream(
        self, argv: Sequence[str], *, on_line: Callable[[str], None], cancel: threading.Event
    ) -> Result:
        """Run a program and hand over each line of its stdout as it comes.

        An exception of ``on_line`` ends the program and comes out.
        """
        sink = Lines(on_line)
        result = self._drive(Order(self.name, argv, cancel=cancel), sink)
        sink.finish()
        return result

    @abstractmethod
    def _drive(self, order: Order, sink: Sink) -> Result:
        """Start the ordered command, pump it to its end and leave nothing of it behind."""
