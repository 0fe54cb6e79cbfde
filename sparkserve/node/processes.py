"""Processes of this node as ``/proc`` shows them: who belongs to a run, how to end them.

A process belongs to a run when it is a descendant of the run's guard, or when its environment
names the run's engine.json; never because of its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sparkserve.model.engine_spec import SPEC_VARIABLE

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 20
"""How often ``end_all`` looks again before it lets go."""


@dataclass(frozen=True)
class Process:
    """One process; ``start_ticks`` makes a reused pid recognisable."""

    pid: int
    parent_pid: int
    state: str
    start_ticks: int
    cpu_s: float
    rss_bytes: int


def read_process(pid: int) -> Process | None:
    """The process with this pid, or None where there is none."""
    try:
        # A command name is 15 bytes of whatever kind: half a letter must not end the guard.
        text = (_PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # It may hold spaces and brackets too; fields are counted after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Process(
        pid=pid,
        parent_pid=int(fields[1]),
        state=fields[0],
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def living(pid: int, start_ticks: int) -> Process | None:
    """The process of this pid if it lives and is the one that began then, not a later one."""
    process = read_process(pid)
    if process is None or process.state in "ZX" or process.start_ticks != start_ticks:
        return None
    return process


def all_processes() -> dict[int, Process]:
    """Every process of this pid namespace by pid, zombies left out."""
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            process = read_process(int(entry.name))
            if process is not None and process.state not in "ZX":
                found[process.pid] = process
    return found


def descendants(root_pid: int) -> list[Process]:
    """Living descendants of a process, parents before children."""
    processes = all_processes()
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent_pid, []).append(process)
    found: list[Process] = []
    queue = [root_pid]
    while queue:
        for child in children.get(queue.pop(0), []):
            found.append(child)
            queue.append(child.pid)
    return found


def carrying(spec_path: str) -> list[Process]:
    """Processes whose environment names this engine.json; unreadable ones are left out."""
    wanted = f"{SPEC_VARIABLE}={spec_path}".encode()
    found = []
    for process in all_processes().values():
        try:
            environment = (_PROC / str(process.pid) / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in environment.split(b"\0") and process.pid != os.getpid():
            found.append(process)
    return found


def send(processes: Iterable[Process], signal_number: signal.Signals) -> None:
    """Signal processes; those that ended in the meantime or are not ours are passed over."""
    for process in processes:
        if living(process.pid, process.start_ticks) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal_number)


def end(processes: Iterable[Process], *, grace_s: float) -> list[Process]:
    """SIGTERM, wait up to ``grace_s``, SIGKILL what is left, wait again.

    Returns:
        Processes that survived even SIGKILL for two seconds (stuck in the kernel, or not ours).
    """
    left = list(processes)
    send(left, signal.SIGTERM)
    left = _wait_gone(left, grace_s)
    send(left, signal.SIGKILL)
    return _wait_gone(left, 2.0)


def end_all(find: Callable[[], Iterable[Process]], *, grace_s: float) -> list[Process]:
    """End what ``find`` finds until it finds nothing: a process may start others as it ends.

    Returns:
        Processes that cannot be ended.
    """
    stuck: dict[int, Process] = {}
    for _ in range(_ROUNDS):
        found = [process for process in find() if process.pid not in stuck]
        if not found:
            break
        stuck |= {process.pid: process for process in end(found, grace_s=grace_s)}
        grace_s = 0.0
    return [process for process in stuck.values() if _lives(process)]


def _wait_gone(processes: list[Process], limit_s: float) -> list[Process]:
    deadline = time.monotonic() + limit_s
    while True:
        processes = [process for process in processes if _lives(process)]
        if not processes or time.monotonic() >= deadline:
            return processes
        time.sleep(0.02)


def _lives(process: Process) -> bool:
    return living(process.pid, process.start_ticks) is not None


def storage_read_bytes(pid: int) -> int:
    """Bytes the process caused to be fetched from storage; 0 where that may not be read."""
    try:
        text = (_PROC / str(pid) / "io").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    for line in text.splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def memory_available_bytes() -> int:
    """``MemAvailable`` of ``/proc/meminfo``: on a Spark this is GPU memory too.

    Raises:
        ValueError: the line is missing, so nothing may be concluded.
    """
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo holds no MemAvailable line")
