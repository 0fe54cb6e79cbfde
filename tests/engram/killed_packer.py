"""Pack as a job file says, and die by SIGKILL before the n-th thing that changes the disk.

usage: killed_packer.py JOB N, or JOB -1 to print how many there are. Every write is done in
two halves, so that death may fall into the middle of a chunk.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

KILL_AT = int(sys.argv[2])
LOCK = Lock()
seen = 0


def before_change() -> None:
    global seen
    with LOCK:
        if seen == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1


def counted(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before_change()
        return real(*args, **kwargs)

    return call


def in_halves(real: Callable[..., int]) -> Callable[..., int]:
    def call(fd: int, buffers: list[memoryview], offset: int) -> int:
        (data,) = buffers
        half = len(data) // 2 // 4096 * 4096
        before_change()
        if half:
            real(fd, [data[:half]], offset)
            before_change()
        return half + real(fd, [data[half:]], offset + half)

    return call


def main() -> None:
    for name in ("fsync", "ftruncate", "replace", "unlink", "posix_fallocate", "write"):
        setattr(os, name, counted(getattr(os, name)))
    os.pwritev = in_halves(os.pwritev)  # type: ignore[assignment]
    from sparkserve.node.pack import pack

    code = pack(Path(sys.argv[1]))
    sys.stderr.write(f"{seen}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
