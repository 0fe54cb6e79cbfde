"""Timed runs of the store, the thread pool and fio."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import resource
import shutil
import subprocess
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sparkserve_native._bench_data import ROW_BYTES
from sparkserve_native.row_store import RowFile, RowStore, StoreOptions


class BenchError(Exception):
    """Something the benchmark needs is missing or gave wrong rows."""


class Rate(NamedTuple):
    """How fast rows came and what they cost."""

    rows_per_s: float
    cpu_us: float
    """Microseconds of this process's time per row, user and kernel; 0 where not measured."""
    hit_percent: float = 0.0


def store_rate(store: RowStore, ids: array[int], batch: int) -> Rate:
    """All whole batches of the ids through the store, one lookup each; the last is checked."""
    out = bytearray(batch * ROW_BYTES)
    places = range(0, len(ids) - batch + 1, batch)

    # Raw addresses: Python's part of a lookup is one foreign call, as for the pool.
    ids_at, out_at = ids.buffer_info()[0], _address(out)
    jobs = [store.job(ids_at + 8 * begin, batch, out_at, 0) for begin in places]

    def work() -> None:
        for job in jobs:
            store.run(job)

    rate = _timed(work, len(places) * batch)
    _check(store.file, ids[places[-1] : places[-1] + batch], out)
    return rate


def pool_rate(
    file: RowFile, ids: array[int], batch: int, threads: int, cache_bytes: int = 0
) -> Rate:
    """The same through the thread pool."""
    library = _pool_library()
    out = bytearray(batch * ROW_BYTES)
    places = range(0, len(ids) - batch + 1, batch)
    pool = library.spnb_pool_open(
        os.fsencode(file.path), file.data_offset_bytes, ROW_BYTES, threads, cache_bytes, 8
    )
    if not pool:
        raise BenchError(f"{file.path}: no direct I/O, or no file")
    try:
        ids_at, out_at = ids.buffer_info()[0], _address(out)

        def work() -> None:
            for begin in places:
                if library.spnb_pool_lookup(pool, ids_at + 8 * begin, batch, out_at):
                    raise BenchError(f"{file.path}: the pool failed to read")

        rate = _timed(work, len(places) * batch)
        hits = library.spnb_pool_hits(pool)
    finally:
        library.spnb_pool_close(pool)
    _check(file, ids[places[-1] : places[-1] + batch], out)
    return Rate(rate.rows_per_s, rate.cpu_us, 100 * hits / (len(places) * batch))


def fio(file: RowFile, depth: int, seconds: float) -> Rate:
    """What fio reads in 4 KiB blocks at random, one block taken for one row.

    Raises:
        BenchError: fio is missing or failed.
    """
    if shutil.which("fio") is None:
        raise BenchError("fio is missing; apt-get install fio")
    words = [
        *("fio", "--name=rows", f"--filename={file.path}", "--readonly", "--rw=randread"),
        *("--bs=4k", "--direct=1", "--ioengine=io_uring", f"--iodepth={depth}"),
        *("--time_based", f"--runtime={seconds}", "--norandommap", "--randrepeat=0"),
        # In this process's own session, and so with its share of the processor.
        "--thread",
        "--output-format=json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"fio: {done.stderr.strip() or done.stdout.strip()}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["read"]["runtime"] / 1000
    return Rate(job["read"]["iops"], 1e6 * cpu_s / max(job["read"]["total_ios"], 1))


def conditions(file: RowFile, depth: int, threads: int, cache_bytes: int) -> dict[str, Any]:
    """What the figures hold for."""
    with RowStore(file, StoreOptions(queue_depth=depth)) as store:
        stats = store.stats()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "file_bytes": Path(file.path).stat().st_size,
        "row_bytes": ROW_BYTES,
        "engine": f"{stats.engine}: {stats.engine_reason}",
        "direct_io": stats.direct_io,
        "alignment_bytes": stats.alignment_bytes,
        "registered_buffers": stats.registered_buffers,
        "queue_depth": depth,
        "pool_threads": threads,
        "trace_cache_bytes": cache_bytes,
        "nice": os.nice(0),
        "load_average": [round(load, 1) for load in os.getloadavg()],
    }


def _timed(work: Callable[[], None], rows: int) -> Rate:
    cpu = _cpu_s()
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    return Rate(rows / took, 1e6 * (_cpu_s() - cpu) / rows)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _check(file: RowFile, ids: array[int], out: bytearray) -> None:
    """A rate of wrong rows is worth nothing."""
    with Path(file.path).open("rb") as plain:
        for place, item in enumerate(ids[:100]):
            plain.seek(file.data_offset_bytes + item * ROW_BYTES)
            if plain.read(ROW_BYTES) != out[place * ROW_BYTES : (place + 1) * ROW_BYTES]:
                raise BenchError(f"{file.path}: row {item} is wrong")


def _address(buffer: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


@functools.cache
def _pool_library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(Path(__file__).with_name("libsparkserve_native_bench.so")))
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    loaded.spnb_pool_open.argtypes = (ctypes.c_char_p, u64, u32, u32, u64, u32)
    loaded.spnb_pool_open.restype = pointer
    loaded.spnb_pool_lookup.argtypes = (pointer, pointer, u64, pointer)
    loaded.spnb_pool_hits.argtypes = (pointer,)
    loaded.spnb_pool_hits.restype = u64
    loaded.spnb_pool_close.argtypes = (pointer,)
    loaded.spnb_pool_close.restype = None
    return loaded
