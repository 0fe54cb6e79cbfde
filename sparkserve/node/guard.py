"""The guard of one rank: starts the engine, watches it and its peers, ends the whole run.

It lives in a session (or systemd unit) of its own, so it outlives the controller: when its
engine dies, when a peer is lost, when memory runs out or when it is told to stop, it tells the
other ranks, ends its own engine with everything that descends from it, and writes why into
``state.json``. Without it an engine that lost a peer waits for ever in a collective.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

from sparkserve.errors import BusyError, ConfigError, ExitCode
from sparkserve.files import replace_file
from sparkserve.model import run_files
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.node_state import GuardState, RankState
from sparkserve.model.vigil import Wedge
from sparkserve.node import boot, housekeeping, keys, memory_watch, processes, wedge_watch
from sparkserve.node.peers import HeadLink, Stop, WorkerLink

_PR_SET_CHILD_SUBREAPER = 36
_GENTLE_GRACE_S = 8.0
"""How long an engine may finish its replies; SGLang drains for about seven seconds."""
_LINGER_S = 10.0
_TIDY_PERIOD_S = 30.0

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


def hold_node(spec: EngineSpec) -> int:
    """Take this node for the run; the kernel lets it go when the guard ends, however it ends.

    Returns:
        The locked file descriptor, to be kept open.

    Raises:
        BusyError: another run holds the node.
    """
    path = Path(spec.root) / "state" / run_files.LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder(os.read(descriptor, 4096))
        os.close(descriptor)
        raise BusyError(f"{spec.node} already serves {holder}", hint="sparkserve stop") from error
    os.ftruncate(descriptor, 0)
    note = {
        "run_id": spec.run_id,
        "pid": os.getpid(),
        "start_ticks": _own_start_ticks(),
        # Whoever did not launch the run finds here what stops it.
        "run_dir": spec.run_dir,
        "python": sys.executable,
    }
    os.write(descriptor, json.dumps(note).encode())
    return descriptor


def _holder(note: bytes) -> str:
    try:
        return f"run {json.loads(note)['run_id']}"
    except (ValueError, KeyError, TypeError):
        # The holder locked the file an instant ago and has not signed it yet.
        return "another run"


def _own_start_ticks() -> int:
    me = processes.read_process(os.getpid())
    assert me is not None, "this process is in /proc"
    return me.start_ticks


class Guard:
    """Watches one rank from start to end; ``run`` returns when nothing of the rank is left."""

    def __init__(self, spec: EngineSpec, spec_path: Path) -> None:
        self.spec = spec
        self.spec_path = spec_path
        self.run_dir = Path(spec.run_dir)
        self.engine_pid: int | None = None
        self.exit_code: int | None = None
        self._link = self._make_link()
        self._ended: asyncio.Future[Stop] | None = None
        self._start_ticks = _own_start_ticks()
        self._notice = ""
        self._state_since: tuple[GuardState, float] = ("starting", time.time())
        """The state, and when it began."""
        self._hurry = asyncio.Event()
        """Set by a stop that comes after the end: whoever asks tells the other ranks too."""

    def start_engine(self) -> None:
        """Fork the engine into a session of its own, its output appended to ``engine.log``."""
        self.write_state("starting")
        descriptor = os.open(
            self.run_dir / run_files.ENGINE_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        guard_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_engine(descriptor, guard_pid)
        os.close(descriptor)
        self.engine_pid = pid
        self.write_state("running")

    def _become_engine(self, log_descriptor: int, guard_pid: int) -> None:
        # Between fork and exec nothing may unwind into the guard's own code.
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log_descriptor, 1)
            os.dup2(log_descriptor, 2)
            boot.die_with_parent()
            if os.getppid() != guard_pid:
                os._exit(ExitCode.INTERNAL)
            boot.run(self.spec_path)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException as error:  # noqa: BLE001  the child must end here whatever happened
            sys.stderr.write(f"sparkserve: FATAL boot {error}\n")
            sys.stderr.flush()
        os._exit(ExitCode.INTERNAL)

    async def run(self) -> None:
        """Watch until the run ends, then end the rank and say why."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_signal_handler(signal.SIGCHLD, self.reap)
        loop.add_signal_handler(signal.SIGTERM, lambda: self._asked_to_stop(gentle=True))
        loop.add_signal_handler(signal.SIGINT, lambda: self._asked_to_stop(gentle=False))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        link = self._link
        vigils = [asyncio.create_task(vigil) for vigil in self._vigils()]
        for task in vigils:
            task.add_done_callback(_tell_failure)
        self.reap()
        try:
            if link is not None:
                await link.start()
        except OSError as error:
            self.end(Stop(f"guard cannot listen: {error}", self.spec.rank, failed=True))
        stop = await self._ended
        for task in vigils:
            task.cancel()
        log.info("ending the run: %s", stop)
        self.write_state("stopping", stop)
        if link is not None:
            await link.announce(stop)
        survivors = await asyncio.to_thread(self._end_processes, stop)
        self.reap()
        try:
            keys.forget(self.run_dir)
        except OSError:
            log.exception("cannot remove the run's keys")
        self.write_state("failed" if stop.failed else "stopped", stop, survivors)
        if link is not None:
            await self._linger(link)

    async def _linger(self, link: HeadLink | WorkerLink) -> None:
        """Stay to tell the others, but no longer than somebody waits for this node."""
        lingering = asyncio.create_task(link.linger(_LINGER_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({lingering, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (lingering, hurry):
            task.cancel()

    def end(self, stop: Stop) -> None:
        """Begin the end of the run; the first reason counts."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(stop)

    def peer_lost(self, rank: int, reason: str) -> None:
        """A peer's guard is gone, so its rank must be taken for dead."""
        self.end(Stop(f"rank {rank} lost: {reason}", rank, failed=True))

    def stop_received(self, stop: Stop) -> None:
        """Another rank ends the run; its reason is told as that rank's, not as ours."""
        said = (
            stop.reason
            if stop.reason.startswith("rank ")
            else (f"rank {stop.origin_rank}: {stop.reason}")
        )
        self.end(replace(stop, reason=said))

    def reap(self) -> None:
        """Collect ended children; the engine's end is the end of the run."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.engine_pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
                self.end(Stop(_describe_exit(self.exit_code), self.spec.rank, failed=True))

    def write_state(self, state: GuardState, stop: Stop | None = None, survivors: int = 0) -> None:
        """Replace ``state.json``; a full disk must not keep the guard from its work."""
        reason = stop.reason if stop else ""
        if survivors:
            reason += f"; {survivors} processes survived SIGKILL (stuck in the kernel)"
        if state != self._state_since[0]:
            self._state_since = (state, time.time())
        record = RankState(
            run_id=self.spec.run_id,
            rank=self.spec.rank,
            node=self.spec.node,
            state=state,
            at_s=self._state_since[1],
            guard_pid=os.getpid(),
            guard_start_ticks=self._start_ticks,
            engine_pid=self.engine_pid,
            exit_code=self.exit_code,
            reason=reason,
            origin_rank=stop.origin_rank if stop else None,
            notice=self._notice,
        )
        try:
            replace_file(self.run_dir / run_files.STATE, record.model_dump_json().encode())
        except OSError:
            log.exception("cannot write state %s", state)

    def _make_link(self) -> HeadLink | WorkerLink | None:
        if self.spec.world_size == 1:
            return None
        path = self.run_dir / run_files.GUARD_KEY
        try:
            key = bytes.fromhex(path.read_text().strip())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} holds no key of this run's guards: {error}") from error
        kind = HeadLink if self.spec.rank == 0 else WorkerLink
        return kind(self.spec, key, self)

    def _asked_to_stop(self, *, gentle: bool) -> None:
        if self._ended is not None and self._ended.done():
            self._hurry.set()
        self.end(Stop("stopped on request", self.spec.rank, failed=False, gentle=gentle))

    def _end_processes(self, stop: Stop) -> int:
        if stop.gentle:
            # The engine's own process drains and ends its children; the rest is for what stays.
            processes.end(
                [p for p in self._family() if p.pid == self.engine_pid], grace_s=_GENTLE_GRACE_S
            )
        return len(processes.end_all(self._family, grace_s=self.spec.guard.stop_grace_s))

    def _family(self) -> list[processes.Process]:
        found = {p.pid: p for p in processes.descendants(os.getpid())}
        found |= {p.pid: p for p in processes.carrying(str(self.spec_path))}
        return list(found.values())

    async def _keep_tidy(self) -> None:
        await asyncio.to_thread(housekeeping.prune_runs, self.run_dir)
        while True:
            await asyncio.to_thread(housekeeping.bound_log, self.run_dir / run_files.ENGINE_LOG)
            await asyncio.sleep(_TIDY_PERIOD_S)

    def _vigils(self) -> list[Coroutine[None, None, None]]:
        """What is watched beside engine and peers, until the run ends."""
        guard = self.spec.guard
        vigils = [
            self._keep_tidy(),
            memory_watch.watch_floor(guard, self._end_here),
            memory_watch.watch_start(guard, self.run_dir, self._end_here),
        ]
        # Only rank 0 serves requests.
        if guard.wedge_action != "off" and self.spec.rank == 0:
            vigils.append(wedge_watch.watch(guard, self.spec.port, self._wedge_seen))
        return vigils

    def _end_here(self, reason: str) -> None:
        self.end(Stop(reason, self.spec.rank, failed=True))

    def _wedge_seen(self, wedge: Wedge | None) -> None:
        """Say that the engine is wedged, or that it is no more; stop it where the profile wants."""
        if wedge is not None and self.spec.guard.wedge_action == "stop":
            self._end_here(f"engine wedged: {wedge}")
            return
        before, self._notice = self._notice, f"engine wedged: {wedge}" if wedge else ""
        if bool(before) == bool(self._notice) or (self._ended and self._ended.done()):
            return
        log.warning("%s", self._notice or "the engine generates again")
        self.write_state("running")


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a vigil of this guard failed", exc_info=task.exception())


def _describe_exit(exit_code: int) -> str:
    if exit_code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"engine killed by {names.get(-exit_code, f'signal {-exit_code}')}"
    if exit_code == ExitCode.REFUSED:
        return "engine refused to start (exit 78): see the FATAL line in its log"
    return f"engine exited with code {exit_code}"


def run(spec_path: Path) -> None:
    """Guard the rank that this engine.json describes until it ends.

    Raises:
        ConfigError: no such spec, or not one; or no key of the run's guards.
        BusyError: another run holds the node; said in ``state.json`` too.
    """
    spec = boot.load_spec(spec_path)
    for name in (run_files.REPORTS, run_files.STATS):
        (Path(spec.run_dir) / name).mkdir(exist_ok=True)
    # What may be wrong with the key must show before an engine is there.
    guard = Guard(spec, spec_path)
    try:
        hold_node(spec)
    except BusyError as error:
        guard.write_state("refused", Stop(error.message, spec.rank, failed=True))
        raise
    libc = ctypes.CDLL(None, use_errno=True)
    # Orphans of the engine become children of the guard, so that nothing can slip away.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A stop that arrives before the handlers stand must wait for them, not end the guard alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    guard.start_engine()
    asyncio.run(guard.run())
