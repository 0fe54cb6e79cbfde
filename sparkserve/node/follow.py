"""Tell the controller what happens on this rank, as NDJSON on stdout, until the rank has ended.

One stream per node carries everything a watcher needs: log lines, state changes, install
reports and once a second the progress counters, which are the sign of life too. Reading again
from the start gives the same lines, so a new controller can take up a run where it stands.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkserve.model.run_files import ENGINE_LOG, REPORTS, SPEC, STATE, STATS
from sparkserve.node import movement, processes

_POLL_S = 0.1
_PROGRESS_S = 1.0
_CACHES_S = 5.0
"""Between two counts of the caches' files."""
_MAX_LINE_BYTES = 32_768
_MAX_READ_BYTES = 1 << 20
_FINAL = ("stopped", "failed", "refused")

Emit = Callable[[str, Any], None]


def read_json(path: Path) -> Any | None:
    """Parsed content of a JSON file, or None where it does not exist or is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def read_state(run_dir: Path) -> dict[str, Any] | None:
    """The guard's state file, or None where there is none that says which guard wrote it."""
    state = read_json(run_dir / STATE)
    if not isinstance(state, dict) or not isinstance(state.get("state"), str):
        return None
    if not all(isinstance(state.get(key), int) for key in ("guard_pid", "guard_start_ticks")):
        return None
    return state


class LogTail:
    """New complete lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0
        self._pending = b""
        self.behind = False
        """Whether the last call left something unread."""

    def skip(self) -> None:
        """Pass over everything that is there now."""
        if self._path.exists():
            self._offset_bytes = self._path.stat().st_size

    def lines(self, *, final: bool = False) -> list[str]:
        """Lines that were completed since the last call; with ``final`` the rest as well.

        At most ``_MAX_READ_BYTES`` at a time: a log of weeks must not fill the node's memory.
        """
        try:
            with self._path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes < self._offset_bytes:
                    # Somebody emptied the file to make room; what comes now is new.
                    self._offset_bytes = 0
                file.seek(self._offset_bytes)
                new = file.read(_MAX_READ_BYTES)
        except FileNotFoundError:
            return []
        self._offset_bytes += len(new)
        self.behind = self._offset_bytes < size_bytes
        final = final and not self.behind
        *complete, self._pending = (self._pending + new).split(b"\n")
        if self._pending and (final or len(self._pending) > _MAX_LINE_BYTES):
            complete.append(self._pending)
            self._pending = b""
        # Progress bars redraw with carriage returns; the last state of the line counts.
        return [
            line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in complete
        ]


def progress(run_dir: Path, guard_pid: int) -> dict[str, Any]:
    """Counters of the rank as ``model.node_state.Progress`` holds them."""
    family = processes.descendants(guard_pid)
    engine_log = run_dir / ENGINE_LOG
    reads = engram_reads(run_dir)
    return {
        "at_s": time.time(),
        "log_bytes": engine_log.stat().st_size if engine_log.exists() else 0,
        "read_bytes": sum(processes.storage_read_bytes(p.pid) for p in family),
        "cpu_s": round(sum(p.cpu_s for p in family), 2),
        "rss_bytes": sum(p.rss_bytes for p in family),
        "memory_available_bytes": processes.memory_available_bytes(),
        "processes": len(family),
        "engram_rows": None if reads is None else sum(reads.values()),
        "engram_reads": reads,
        "received_bytes": movement.received_bytes(),
    }


def engram_reads(run_dir: Path) -> dict[int, int] | None:
    """Rows the Engram adapter read, by layer, over all processes; None where none reports."""
    counted = [_reads_in(read_json(path)) for path in (run_dir / STATS).glob("engram-*.json")]
    known = [rows for rows in counted if rows is not None]
    if not known:
        return None
    layers = sorted({layer for rows in known for layer in rows})
    return {layer: sum(rows.get(layer, 0) for rows in known) for layer in layers}


def _reads_in(stats: Any) -> dict[int, int] | None:
    """Rows by layer in one statistics file; None where it is not one."""
    try:
        return {int(layer["layer"]): int(layer["rows_read"]) for layer in stats["layers"]}
    except (TypeError, KeyError, ValueError):
        return None


def guard_lives(state: dict[str, Any]) -> bool:
    """Whether the guard that wrote this state still runs."""
    return processes.living(state["guard_pid"], state["guard_start_ticks"]) is not None


class Follower:
    """One pass over the run directory at a time; each emits what is new."""

    def __init__(self, run_dir: Path, emit: Emit, *, new_only: bool = False) -> None:
        self._run_dir = run_dir
        self._emit = emit
        self._log = LogTail(run_dir / ENGINE_LOG)
        if new_only:
            self._log.skip()
        self._state: dict[str, Any] | None = None
        self._reports: dict[str, bytes] = {}
        self._progress_at = 0.0
        self._caches: list[Path] | None = None
        self._counted_at = 0.0
        self._cache_files: int | None = None

    def step(self) -> bool:
        """Emit what is new; True once the rank has ended and everything was told.

        The rank's end is told after all that it logged.
        """
        state = read_state(self._run_dir)
        dead = state is not None and not guard_lives(state)
        ended = state is not None and (state["state"] in _FINAL or dead)
        for line in self._log.lines(final=ended):
            self._emit("log", line)
        while ended and self._log.behind:
            for line in self._log.lines(final=True):
                self._emit("log", line)
        self._tell_reports()
        if state is not None:
            if dead and state["state"] not in _FINAL:
                state = state | {"state": "failed", "reason": "the guard died"}
            if state != self._state:
                self._state = state
                self._emit("state", state)
            self._tell_progress(state["guard_pid"])
        return ended

    @property
    def behind(self) -> bool:
        """Whether more of the log is there already than was told."""
        return self._log.behind

    def _tell_reports(self) -> None:
        for path in sorted((self._run_dir / REPORTS).glob("*.json")):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            if self._reports.get(path.name) != text:
                self._reports[path.name] = text
                report = read_json(path)
                if report is not None:
                    self._emit("report", report)

    def _tell_progress(self, guard_pid: int) -> None:
        now = time.monotonic()
        if now - self._progress_at >= _PROGRESS_S:
            self._progress_at = now
            counters = progress(self._run_dir, guard_pid)
            self._emit("progress", counters | {"cache_files": self._count_caches(now)})

    def _count_caches(self, now: float) -> int | None:
        """Files in the engine's caches, counted anew every few seconds."""
        if self._caches is None:
            spec = read_json(self._run_dir / SPEC)
            if not isinstance(spec, dict):
                return None
            env, root = spec.get("env") or {}, Path(str(spec.get("root", self._run_dir)))
            self._caches = movement.cache_dirs(root, env, Path.home())
        if self._cache_files is None or now - self._counted_at >= _CACHES_S:
            self._cache_files = movement.cache_files(self._caches)
            self._counted_at = now
        return self._cache_files


def run(run_dir: Path, *, new_only: bool = False) -> None:
    """Follow a run directory until its rank has ended; ends quietly when nobody listens.

    new_only: tell of the log only what is written from now on.
    """

    def emit(kind: str, value: Any) -> None:
        sys.stdout.write(json.dumps({"kind": kind, "value": value}) + "\n")
        sys.stdout.flush()

    follower = Follower(run_dir, emit, new_only=new_only)
    try:
        while not follower.step():
            if not follower.behind:
                time.sleep(_POLL_S)
    except BrokenPipeError:
        # The reader went away; nothing is left to say, not even at interpreter exit.
        sys.stdout = open("/dev/null", "w")  # noqa: PTH123, SIM115
