"""One packer per rank and folder: a file lock that dies with its holder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sparkserve.engram.ownership import Layout
from sparkserve.engram.pack_error import PackError, disk_error
from sparkserve.files import write_all
from sparkserve.model.pack import PackCode


def lock_path(out: Path, rank: int, tp: int, layout: Layout) -> Path:
    """The lock file; it stays behind and is no lock by itself."""
    infix = ".strided" if layout == "strided" else ""
    return out / f".pack-r{rank}of{tp}{infix}.lock"


@contextmanager
def pack_lock(path: Path) -> Iterator[None]:
    """Hold the lock, or refuse at once.

    Raises:
        PackError: another process holds it; the message names it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise disk_error(error, path, "locking") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackError(
                PackCode.LOCKED,
                f"{_holder(descriptor)} packs the same rank into this folder",
                path=path,
                hint="wait for it, or stop it: the next call goes on from where it was",
            ) from error
        _sign(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _sign(descriptor: int, path: Path) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    note = {"pid": os.getpid(), "host": os.uname().nodename, "since": since}
    try:
        os.ftruncate(descriptor, 0)
        write_all(descriptor, json.dumps(note).encode() + b"\n")
    except OSError as error:
        raise disk_error(error, path, "locking") from error


def _holder(descriptor: int) -> str:
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {note['pid']} on {note['host']} (since {note['since']})"
    except (ValueError, KeyError, TypeError):
        # The holder locked the file an instant ago and has not signed it yet.
        return "another sparkserve process"
