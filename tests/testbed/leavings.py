"""Whose cluster is it, and does its owner live: what killed runs left behind is removed here."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.testbed import processes
from tests.testbed.disk import umounted
from tests.testbed.network import namespaces_of, remove_namespaces
from tests.testbed.node import remove_cgroup
from tests.testbed.shell import run, wait_until

BASE = Path("/run/sparkserve-testbed")


@contextmanager
def lock() -> Iterator[None]:
    """Hold off other processes that make, sweep or remove clusters."""
    BASE.mkdir(parents=True, exist_ok=True)
    with (BASE / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def claim(prefix: str, *, lasting: bool) -> Path:
    """Make the cluster's folder with its owner noted; the caller holds `lock`.

    lasting: no owner process; it lives until someone takes it down.
    """
    folder = BASE / prefix
    folder.mkdir()
    pid = os.getpid()
    owner = {"pid": None if lasting else pid}
    start = None if lasting else processes.start_time(pid)
    (folder / "owner.json").write_text(json.dumps({**owner, "start": start}))
    return folder


def abandoned() -> list[str]:
    """Prefixes of clusters whose owner is dead."""
    found = []
    for folder in sorted(BASE.iterdir()) if BASE.is_dir() else []:
        if folder.is_dir() and not _owned(folder):
            found.append(folder.name)
    return found


def _owned(folder: Path) -> bool:
    try:
        owner = json.loads((folder / "owner.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False  # its maker died between mkdir and the note
    return owner["pid"] is None or processes.start_time(owner["pid"]) == owner["start"]


def sweep() -> list[str]:
    """Remove every abandoned cluster; the caller holds `lock`. Returns their prefixes."""
    gone = abandoned()
    for prefix in gone:
        remove(prefix)
    return gone


def remove(prefix: str) -> None:
    """Remove one cluster by what the machine shows of it, without its objects in memory."""
    folder = BASE / prefix
    members = _members(prefix)
    for pid, start in members.items():
        if processes.start_time(pid) == start:
            processes.send(pid, signal.SIGKILL)
    for pid, start in members.items():
        # a killed child of this very process stays a zombie until reaped, which is gone enough
        wait_until(partial(_dead, pid, start), what=f"end of process {pid}")
    remove_namespaces(prefix)
    for node in sorted(folder.glob("spark*")):
        remove_cgroup(f"{prefix}-{node.name}")
        for place in (node / "disk", node / "nvme"):
            if os.path.ismount(place):
                wait_until(
                    partial(umounted, place),
                    what=f"unmount of {place}",
                )
    shutil.rmtree(folder)


def _members(prefix: str) -> dict[int, str | None]:
    """Processes that live in the cluster's namespaces or boot its nodes -> start time."""
    found: set[int] = set()
    for name in namespaces_of(prefix):
        found |= {int(pid) for pid in run("ip", "netns", "pids", name).stdout.split()}
    marker = f"{BASE / prefix}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            program = Path(os.fsdecode(argv[0])).name
            if program in ("unshare", "systemd-nspawn") and any(
                marker in word for word in argv[1:]
            ):
                found.add(int(entry.name))
    found.discard(os.getpid())
    return {pid: processes.start_time(pid) for pid in found}


def _dead(pid: int, start: str | None) -> bool:
    if processes.start_time(pid) != start:
        return True
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
