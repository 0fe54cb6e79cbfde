"""Exact rows of a packed table, read from NVMe: the typed face of ``row_store.h``."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from sparkserve_native import _row_store_abi as abi
from sparkserve_native.buffers import address_of
from sparkserve_native.library import library

Engine = Literal["io_uring", "pread"]


class RowStoreError(OSError):
    """A store cannot be opened, or a lookup failed; no row of that lookup may be used."""

    def __init__(self, number: int, reason: str, path: str, offset_bytes: int | None) -> None:
        super().__init__(number, reason, path)
        self.path = path
        """The store's file."""
        self.offset_bytes = offset_bytes
        """The byte of the file where it went wrong; None where no byte is to blame."""

    def __str__(self) -> str:
        place = (
            self.path if self.offset_bytes is None else f"{self.path} at byte {self.offset_bytes}"
        )
        return f"{place}: {self.strerror}"


@dataclass(frozen=True)
class Segment:
    """A run of owned global ids: id -> row ``first_row + (id - first_id)``."""

    first_id: int
    end_id: int
    """One past the last id."""
    first_row: int


@dataclass(frozen=True)
class RowFile:
    """Where the rows of a table lie in a file; a row is its weights, then its scales."""

    path: str
    data_offset_bytes: int
    """Where row 0 begins; any alignment."""
    rows: int
    """Rows in the file."""
    weight_bytes: int
    scale_bytes: int
    total_ids: int
    """Ids of the whole table; an id outside ``0 <= id < total_ids`` is an error."""
    segments: tuple[Segment, ...]
    """Ascending, without overlap; an id in no segment is not owned and gives a row of zeros."""


@dataclass(frozen=True)
class StoreOptions:
    """How a store reads and what it may use."""

    engine: Literal["auto", "io_uring", "pread"] = "auto"
    """``auto`` takes io_uring, or pread where the kernel refuses it; the store says why."""
    queue_depth: int = 128
    """Reads in flight with io_uring."""
    threads: int = 32
    """Reads in flight with pread, the caller's own included."""
    cache_bytes: int = 0
    """Hard limit of the row cache with all that belongs to it; 0 = no cache."""
    cache_ways: int = 8
    gap_bytes: int = 4096
    """Rows no further apart than this are read together."""
    max_ids: int = 131072
    """Working memory is made for this many; longer lookups are done in pieces."""


@dataclass(frozen=True)
class StoreStats:
    """Sums since the store was opened; every owned id counts as one hit or one miss."""

    engine: Engine
    engine_reason: str
    lookups: int
    failed_lookups: int
    ids: int
    owned_ids: int
    hits: int
    misses: int
    """Duplicates within one lookup count each time: hits + misses == owned_ids."""
    unique_ids: int
    """Distinct rows among the misses of each lookup."""
    extents: int
    """Reads planned after joining near rows."""
    reads: int
    """Reads asked of the kernel; more than ``extents`` after short reads."""
    bytes_read: int
    p50_job_ns: int
    """Time of a lookup from call to return, within 7 %."""
    p99_job_ns: int
    cache_bytes: int
    cache_slots: int
    cache_ways: int
    arena_bytes: int
    queue_depth: int
    direct_io: bool
    """False where the file system refused O_DIRECT: reads then go through the page cache."""
    alignment_bytes: int
    registered_buffers: bool


class LookupJob:
    """One lookup at a fixed address, for ``run``, ``submit`` and ``wait`` or a CUDA host function.

    The memory behind the addresses belongs to the caller and must outlive the job's use.
    """

    def __init__(self, store: RowStore, struct: abi.LookupJob) -> None:
        self.store = store
        self.struct = struct

    @property
    def address(self) -> int:
        """Of the C structure; constant as long as this object lives."""
        return ctypes.addressof(self.struct)

    @property
    def count(self) -> int:
        """Ids per lookup; may be set between lookups."""
        return int(self.struct.count)

    @count.setter
    def count(self, count: int) -> None:
        self.struct.count = count


class RowStore:
    """A store over one file. Any number of threads may use it; lookups run one after the other.

    A store belongs to the process that opened it: after ``os.fork`` the child's calls refuse.
    """

    def __init__(self, file: RowFile, options: StoreOptions = StoreOptions()) -> None:
        """Open it.

        Raises:
            RowStoreError: the file is missing, too short for its rows or not to be read; the
                description contradicts itself; or ``engine="io_uring"`` and the kernel refuses.
            ValueError: a number does not fit its field, or the path holds a null byte.
        """
        self.file = file
        self.options = options
        self._handle = ctypes.c_void_p()
        self._process = os.getpid()
        self._users = 0
        self._idle = threading.Condition()
        self._jobs: weakref.WeakSet[LookupJob] = weakref.WeakSet()
        # The store's thread writes to a submitted job, so it lives until it is waited for.
        self._submitted: set[LookupJob] = set()
        config = abi.config_of(file, options)
        result = _library().spn_store_open(ctypes.byref(config), ctypes.byref(self._handle))
        self._check(result)
        opened = self.stats()
        self.engine: Engine = opened.engine
        """What reads the rows."""
        self.engine_reason = opened.engine_reason
        """Why it is this engine, e.g. ``io_uring_setup: Operation not permitted (seccomp?)``."""

    def lookup_into(self, ids: Any, weights: Any, scales: Any = None) -> None:
        """Look up rows, in the order of the ids.

        ids: int64[n], contiguous, any object with the buffer protocol.
        weights: uint8[n * weight_bytes] to write to.
        scales: uint8[n * scale_bytes] to write to; None = ``weights`` takes whole rows
            (weights and scales back to back, n * (weight_bytes + scale_bytes)).

        Raises:
            RowStoreError: an id out of range, a failed or short read, a file that changed; the
                buffers then hold zeros.
            ValueError: a buffer has another length, or the store is closed.
        """
        row = self.file.weight_bytes + self.file.scale_bytes
        with address_of(ids, None, "read") as (ids_at, ids_bytes):
            if ids_bytes % 8:
                raise ValueError(f"ids of {ids_bytes} bytes, expected a multiple of 8 (int64)")
            count = ids_bytes // 8
            if scales is None:
                with address_of(weights, count * row, "write") as (weights_at, _):
                    self._lookup(ids_at, count, weights_at, 0)
                return
            with (
                address_of(weights, count * self.file.weight_bytes, "write") as (weights_at, _),
                address_of(scales, count * self.file.scale_bytes, "write") as (scales_at, _),
            ):
                self._lookup(ids_at, count, weights_at, scales_at)

    def job(
        self, ids_address: int, count: int, weights_address: int, scales_address: int
    ) -> LookupJob:
        """A lookup over raw addresses, to be used many times; scales_address 0 = whole rows."""
        with self._in_use() as handle:
            struct = abi.LookupJob(
                struct_bytes=ctypes.sizeof(abi.LookupJob),
                store=handle,
                ids=ids_address,
                count=count,
                weights=weights_address,
                scales=scales_address or None,
            )
            job = LookupJob(self, struct)
            self._jobs.add(job)
        return job

    def run(self, job: LookupJob) -> None:
        """Do a job on this thread.

        Raises:
            RowStoreError: it failed, or it is submitted and not waited for.
            ValueError: the store is closed, or the job is another store's.
        """
        with self._using(job):
            self._check(_library().spn_store_run(job.address))

    def submit(self, job: LookupJob) -> None:
        """Hand a job to the store's own thread and return at once; jobs run in this order.

        Raises:
            RowStoreError: it is submitted already.
            ValueError: the store is closed, or the job is another store's.
        """
        with self._using(job):
            self._check(_library().spn_store_submit(job.address))
            self._submitted.add(job)

    def wait(self, job: LookupJob) -> None:
        """Wait for a submitted job.

        Raises:
            RowStoreError: the job failed, or it was not submitted.
            ValueError: the store is closed, or the job is another store's.
        """
        with self._using(job):
            result = _library().spn_store_wait(job.address)
            self._submitted.discard(job)
            self._check(result)

    def stats(self) -> StoreStats:
        """What the store did and is; cheap, and never waits for a lookup."""
        out = abi.Stats(struct_bytes=ctypes.sizeof(abi.Stats))
        with self._in_use() as handle:
            self._check(_library().spn_store_get_stats(handle, ctypes.byref(out)))
        return StoreStats(**abi.stats_fields(out))

    def close(self) -> None:
        """Finish submitted jobs, end the threads, free everything; a second call does nothing.

        Waits for calls of other threads; new calls and jobs of this store refuse.
        """
        if os.getpid() != self._process:
            # Another thread of the parent may have held the lock when this process was forked.
            self._handle = ctypes.c_void_p()
            return
        with self._idle:
            handle, self._handle = self._handle, ctypes.c_void_p()
            self._idle.wait_for(lambda: self._users == 0)
            # Submitted jobs are finished by the close itself, so their store stays until then.
            _library().spn_store_close(handle)
            self._submitted.clear()
            for job in self._jobs:
                job.struct.store = None

    def __enter__(self) -> RowStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self, _process_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the process this module's own names may be gone before the store is.
        if not _process_ends() and getattr(self, "_handle", None):
            self.close()

    def _lookup(self, ids: int, count: int, weights: int, scales: int) -> None:
        with self._in_use() as handle:
            self._check(_library().spn_store_lookup(handle, ids, count, weights, scales or None))

    @contextmanager
    def _in_use(self) -> Iterator[ctypes.c_void_p]:
        """Keep ``close`` away from a call that is under way."""
        if os.getpid() != self._process:
            reason = "the row store was opened by another process; open one after the fork"
            raise RowStoreError(errno.EOWNERDEAD, reason, self.file.path, None)
        with self._idle:
            handle = self._handle
            if not handle:
                raise ValueError(f"{self.file.path}: the row store is closed")
            self._users += 1
        try:
            yield handle
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    @contextmanager
    def _using(self, job: LookupJob) -> Iterator[None]:
        """``_in_use`` for a job; that of another store would go past that store's ``close``."""
        if job.store is not self:
            raise ValueError(f"{self.file.path}: a job of the store of {job.store.file.path}")
        with self._in_use():
            yield

    def _check(self, result: int) -> None:
        if result >= 0:
            return
        at = int(_library().spn_last_error_offset())
        offset = None if at < 0 else at
        text = _library().spn_last_error().decode(errors="replace")
        place = self.file.path if offset is None else f"{self.file.path} at byte {offset}"
        reason = text.removeprefix(f"{place}: ") or errno.errorcode.get(-result, str(-result))
        raise RowStoreError(-result, reason, self.file.path, offset)


def host_callback() -> int:
    """Address of a function for ``cudaLaunchHostFunc`` that runs the job given as its argument.

    Where the job fails it writes one line ``sparkserve: FATAL engram_rows {json}`` to stderr and
    ends the process with code 78: a wrong row must not be served.
    """
    return _address("spn_store_host_callback")


def host_submit_callback() -> int:
    """The same, submitting the job."""
    return _address("spn_store_host_submit_callback")


def host_wait_callback() -> int:
    """The same, waiting for the submitted job."""
    return _address("spn_store_host_wait_callback")


def _address(name: str) -> int:
    return ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0


def _library() -> ctypes.CDLL:
    return abi.declared(library())
