"""One launch at a time per cluster: a file lock that dies with its holder."""

from __future__ import annotations

import fcntl
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from sparkserve.errors import BusyError, ConfigError
from sparkserve.files import write_all
from sparkserve.paths import state_dir

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class ClusterLock:
    """Holds one cluster for one run; use as a context manager.

    The lock is the kernel's (flock): it is gone as soon as the process is, however it ended.
    The file stays and names the last holder; a leftover file is not a held lock.

    cluster: name of the cluster. run_id: what the holder is doing, for the other's message.
    """

    def __init__(self, cluster: str, run_id: str) -> None:
        self.cluster = cluster
        self.run_id = run_id
        self.path = lock_path(cluster)
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock or refuse at once.

        Raises:
            BusyError: another process holds it; names the process and its run.
            ConfigError: the lock file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; does nothing where it is not held."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> ClusterLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"cluster {self.cluster} is held by {_holder(descriptor)}",
                hint=f"sparkserve status --cluster {self.cluster}",
            ) from error
        note = {
            "pid": os.getpid(),
            "run_id": self.run_id,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            write_all(descriptor, json.dumps(note).encode() + b"\n")
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror or error}") from error


def lock_path(cluster: str) -> Path:
    """The lock file of a cluster."""
    return state_dir() / "locks" / f"{_UNSAFE.sub('_', cluster) or '_'}.lock"


def _holder(descriptor: int) -> str:
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {note['pid']} (run {note['run_id']}, since {note['since']})"
    except (ValueError, KeyError, TypeError):
        # The holder locked the file an instant ago and has not signed it yet.
        return "another sparkserve process"
