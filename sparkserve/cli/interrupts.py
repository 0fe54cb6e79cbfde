"""Ctrl-C in two stages: the first lets the command clean up or detach, the second ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from sparkserve.errors import ExitCode

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_PRESS_S = 0.3
"""A wrapper such as make hands on a signal that the terminal sent us already."""
_AGAIN_S = 0.005
"""How soon a press that came at a bad moment is looked at again."""
# The second is named and not imported: every command would pay for it.
_LOCK_FILES = (threading.Condition.wait.__code__.co_filename, "/concurrent/futures/_base.py")
_JOINS = frozenset(
    getattr(threading.Thread, name).__code__
    for name in ("join", "_wait_for_tstate_lock")
    if hasattr(threading.Thread, name)
)
_SHOW_CURSOR = "\x1b[?25h"


class _Stages:
    """What has been pressed so far, and what the stages do."""

    def __init__(self) -> None:
        self.first_at_s: float | None = None
        self.detach: Callable[[], None] | None = None
        """Called at the first press in place of raising KeyboardInterrupt."""
        self.farewell = "interrupted"
        """What the second press says."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.first_at_s is None:
            self.first_at_s = now_s
            if self.detach is None:
                self.raise_soon(number, frame)
            else:
                self.detach()
        elif now_s - self.first_at_s > _SAME_PRESS_S:
            cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
            # Locks may be held: only a bare write is safe here.
            os.write(2, f"\n{cursor}{self.farewell}\n".encode())
            os._exit(int(ExitCode.INTERRUPTED))

    def raise_soon(self, _number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, at once or as soon as no lock is being taken or given back."""
        if not _keeps_locks(frame):
            raise KeyboardInterrupt
        # No thread may be started from here: that takes locks itself.
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _keeps_locks(frame: FrameType | None) -> bool:
    """Whether an exception at this place could leave a lock taken for ever.

    ``threading.Condition`` takes its lock in Python code: an exception between that and the
    ``with`` block leaves it taken, and a thread that finishes a Future then waits for it for ever.
    While ``Condition.wait`` and ``Thread.join`` block they are made for exceptions.
    """
    if frame is None or not frame.f_code.co_filename.endswith(_LOCK_FILES):
        return False
    if frame.f_code is threading.Condition.wait.__code__:
        return frame.f_locals.get("gotit") is not False
    return frame.f_code not in _JOINS


_stages = _Stages()


@contextlib.contextmanager
def second_ends_at_once() -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP alike for the time of one command.

    The first raises KeyboardInterrupt, or calls what ``detaching`` was given. One that was
    ignored from the start (nohup, a background job of a script) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _stages
    _stages = _Stages()
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, _stages.handle) for number in heard}
    old[signal.SIGALRM] = signal.signal(signal.SIGALRM, _stages.raise_soon)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in old.items():
            signal.signal(number, handler)


def say_at_second(farewell: str) -> None:
    """What the second Ctrl-C says before it ends the process: the command that cleans up."""
    _stages.farewell = farewell


@contextlib.contextmanager
def detaching(detach: Callable[[], None]) -> Iterator[None]:
    """For this time the first Ctrl-C only calls ``detach``; it must not block."""
    _stages.detach = detach
    try:
        yield
    finally:
        _stages.detach = None


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed during this command."""
    return _stages.first_at_s is not None


def forget() -> None:
    """Begin anew: the next Ctrl-C is a first one (after an interrupted answer of a chat)."""
    _stages.first_at_s = None
