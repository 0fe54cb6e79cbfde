"""Which processes live in a node, seen from the machine: no tool inside the node is needed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple


class NodeProcess(NamedTuple):
    """One live process of a node; zombies are left out."""

    pid: int
    """As the node itself counts."""
    machine_pid: int
    parent_machine_pid: int
    user_id: int
    argv: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line in one string."""
        return " ".join(self.argv)


def processes_of(init_pid: int) -> list[NodeProcess]:
    """All processes in the pid namespace of which ``init_pid`` is number 1, by node pid."""
    try:
        namespace = Path(f"/proc/{init_pid}/ns/pid").readlink()
    except FileNotFoundError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            process = _read(entry, namespace)
            if process is not None:
                found.append(process)
    return sorted(found)


def _read(entry: Path, namespace: Path) -> NodeProcess | None:
    try:
        if (entry / "ns/pid").readlink() != namespace:
            return None
        status = dict(
            line.split(":", 1)
            for line in (entry / "status").read_text().splitlines()
            if ":" in line
        )
        argv = tuple((entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # it ended while we looked, or is out of reach even for root: not a node's
    if status["State"].split()[0] in "ZX":
        return None
    return NodeProcess(
        pid=int(status["NSpid"].split()[-1]),
        machine_pid=int(entry.name),
        parent_machine_pid=int(status["PPid"]),
        user_id=int(status["Uid"].split()[0]),
        argv=argv or (status["Name"].strip(),),
    )


def start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks: tells it from a later one of the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()[19]


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False where the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
