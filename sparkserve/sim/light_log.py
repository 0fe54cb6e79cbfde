"""Log lines in the shapes of SGLang 0.5.23, on stderr, each in one write.

Shapes were read in the wheel's sources and in logs of the CPU engine.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

ENGINE_VERSION = "0.5.23"
_STDERR = 2


@dataclass(frozen=True)
class Log:
    """Writes lines of one process."""

    prefix: str = ""
    """Such as ``" TP1"`` in the scheduler of rank 1; the main process has none."""

    def line(self, message: str) -> None:
        """Write one line with SGLang's time stamp."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        raw(f"[{now}{self.prefix}] {message}\n")

    def shards(self, done: int, total: int) -> None:
        """Show the progress bar of the weight loader, which rewrites its own line."""
        percent = 100 * done // total
        end = "\n" if done == total else ""
        raw(
            f"\rLoading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{total} "
            f"[00:00<00:00, 45.50it/s]{end}"
        )


def raw(text: str) -> None:
    """Write a text to stderr as it is."""
    os.write(_STDERR, text.encode())


def scheduler_prefix(rank: int, tp: int) -> str:
    """Prefix of the scheduler's lines: SGLang names the rank only where there are several."""
    return f" TP{rank}" if tp > 1 else ""
