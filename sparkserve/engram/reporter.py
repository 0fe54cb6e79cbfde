"""What a running job tells, and how it hears that it shall end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from sparkserve.engram.pace import SLOW_BYTES_PER_S, SLOW_WINDOW_S, Pace
from sparkserve.engram.pack_error import PackError
from sparkserve.model.pack import PackCode, PackEvent, PackProgress, PackWarning, Phase

_T = TypeVar("_T")
_EVERY_S = 0.25
_TICK_S = 0.1


class Reporter:
    """Sends progress, warns of a slow disk, and stops the job between two chunks.

    send: takes every event; called from one thread.
    stop: set from outside to end the job; what was written stays for the next call.
    """

    def __init__(
        self,
        send: Callable[[PackEvent], None],
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.send = send
        self._stop = stop or threading.Event()
        self._clock = clock
        self._pace = Pace()
        self._phase: Phase = "check"
        self._layer = 0
        self._done_bytes = 0
        self._total_bytes = 0
        self._sent_s = float("-inf")

    def begin(self, phase: Phase, total_bytes: int, done_bytes: int = 0) -> None:
        """A new phase: rates begin anew."""
        self._phase, self._total_bytes, self._done_bytes = phase, total_bytes, done_bytes
        self._pace = Pace()
        self._pace.step(self._clock(), done_bytes)
        self._sent_s = float("-inf")

    def step(self, layer: int, step_bytes: int) -> None:
        """More bytes of the phase are done."""
        self._layer = layer
        self._done_bytes += step_bytes
        self.tick()

    def tick(self) -> None:
        """Say how far it is, if it is time; called also while nothing moves.

        Raises:
            PackError: the job shall stop.
        """
        self.check_stop()
        now_s = self._clock()
        self._pace.step(now_s, self._done_bytes)
        at_end = self._done_bytes >= self._total_bytes
        if now_s - self._sent_s < _EVERY_S and not at_end:
            return
        self._sent_s = now_s
        self.send(
            PackProgress(
                layer=self._layer,
                phase=self._phase,
                done_bytes=self._done_bytes,
                total_bytes=self._total_bytes,
                bytes_per_s=round(self._pace.bytes_per_s, 1),
            )
        )
        rate = self._pace.slow()
        if rate is not None and not at_end:
            self.send(
                PackWarning(
                    code=PackCode.SLOW,
                    message=f"{rate / 1e6:.1f} MB/s over {SLOW_WINDOW_S:.0f} s, expected at least "
                    f"{SLOW_BYTES_PER_S / 1e6:.0f} MB/s",
                    hint="iostat -x 5 shows which disk is busy; a mount shows the network instead",
                )
            )

    def check_stop(self) -> None:
        """End the job if somebody asked for it.

        Raises:
            PackError: the job shall stop.
        """
        if self._stop.is_set():
            raise _stopped()

    def sleep(self, seconds: float) -> None:
        """Wait, unless the job shall stop; for any thread.

        Raises:
            PackError: the job shall stop.
        """
        if self._stop.wait(seconds):
            raise _stopped()

    def result(self, future: Future[_T]) -> _T:
        """Wait for something that another thread does, and keep reporting meanwhile.

        Raises:
            PackError: the job shall stop. What the other thread raised.
        """
        while not wait([future], timeout=_TICK_S).done:
            self.tick()
        return future.result()


def _stopped() -> PackError:
    return PackError(
        PackCode.INTERRUPTED,
        "stopped; what is packed so far stays, and the same command goes on from there",
    )
