"""The structures and functions of ``row_store.h`` for ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sparkserve_native.row_store import RowFile, StoreOptions

_ENGINES: dict[str, int] = {"auto": 0, "io_uring": 1, "pread": 2}
_U32, _U64, _I64, _POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p


class Segment(ctypes.Structure):
    _fields_ = (("first_id", _I64), ("end_id", _I64), ("first_row", _I64))


class Config(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", _U32),
        ("engine", _U32),
        ("path", ctypes.c_char_p),
        ("data_offset_bytes", _U64),
        ("rows", _U64),
        ("total_ids", _U64),
        ("weight_bytes", _U32),
        ("scale_bytes", _U32),
        ("segments", ctypes.POINTER(Segment)),
        ("segment_count", _U64),
        ("cache_bytes", _U64),
        ("cache_ways", _U32),
        ("queue_depth", _U32),
        ("threads", _U32),
        ("gap_bytes", _U32),
        ("max_ids", _U64),
    )


class LookupJob(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", _U32),
        ("state", _U32),
        ("store", _POINTER),
        ("ids", _POINTER),
        ("count", _U64),
        ("weights", _POINTER),
        ("scales", _POINTER),
        ("next", _POINTER),
        ("result", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("error_offset_bytes", _I64),
        ("error", ctypes.c_char * 256),
    )


class Stats(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", _U32),
        ("engine", _U32),
        ("lookups", _U64),
        ("failed_lookups", _U64),
        ("ids", _U64),
        ("owned_ids", _U64),
        ("hits", _U64),
        ("misses", _U64),
        ("unique_ids", _U64),
        ("extents", _U64),
        ("reads", _U64),
        ("bytes_read", _U64),
        ("p50_job_ns", _U64),
        ("p99_job_ns", _U64),
        ("cache_bytes", _U64),
        ("cache_slots", _U64),
        ("arena_bytes", _U64),
        ("cache_ways", _U32),
        ("queue_depth", _U32),
        ("direct_io", _U32),
        ("alignment_bytes", _U32),
        ("registered_buffers", _U32),
        ("reserved", _U32),
        ("engine_reason", ctypes.c_char * 256),
    )


@functools.cache
def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the signatures of its row store functions."""
    library.spn_store_open.argtypes = (_POINTER, _POINTER)
    library.spn_store_lookup.argtypes = (_POINTER, _POINTER, _U64, _POINTER, _POINTER)
    for name in ("spn_store_run", "spn_store_submit", "spn_store_wait"):
        getattr(library, name).argtypes = (_POINTER,)
    library.spn_store_get_stats.argtypes = (_POINTER, _POINTER)
    library.spn_store_close.argtypes = (_POINTER,)
    library.spn_store_close.restype = None
    library.spn_last_error_offset.argtypes = ()
    library.spn_last_error_offset.restype = _I64
    return library


def config_of(file: RowFile, options: StoreOptions) -> Config:
    """The C form of a description; it keeps alive what it points to.

    Raises:
        ValueError: a number that its field cannot hold, or a path with a null byte.
    """
    path = os.fsencode(file.path)
    if b"\0" in path:
        raise ValueError(f"null byte in path: {file.path!r}")
    segments = (Segment * len(file.segments))(
        *(
            Segment(
                _i64("first_id", s.first_id), _i64("end_id", s.end_id), _i64("row", s.first_row)
            )
            for s in file.segments
        )
    )
    return Config(
        struct_bytes=ctypes.sizeof(Config),
        engine=_ENGINES[options.engine],
        path=path,
        data_offset_bytes=_u64("data_offset_bytes", file.data_offset_bytes),
        rows=_u64("rows", file.rows),
        total_ids=_u64("total_ids", file.total_ids),
        weight_bytes=_u32("weight_bytes", file.weight_bytes),
        scale_bytes=_u32("scale_bytes", file.scale_bytes),
        segments=segments,
        segment_count=len(segments),
        cache_bytes=_u64("cache_bytes", options.cache_bytes),
        cache_ways=_u32("cache_ways", options.cache_ways),
        queue_depth=_u32("queue_depth", options.queue_depth),
        threads=_u32("threads", options.threads),
        gap_bytes=_u32("gap_bytes", options.gap_bytes),
        max_ids=_u64("max_ids", options.max_ids),
    )


def stats_fields(stats: Stats) -> dict[str, Any]:
    """The fields of the Python form."""
    engine: Literal["io_uring", "pread"] = "io_uring" if stats.engine == 1 else "pread"
    left_out = {"struct_bytes", "engine", "reserved", "engine_reason", "direct_io"}
    names = [name for name, _ in stats._fields_ if name not in left_out]
    fields: dict[str, Any] = {name: getattr(stats, name) for name in names}
    fields["registered_buffers"] = bool(stats.registered_buffers)
    return fields | {
        "engine": engine,
        "engine_reason": stats.engine_reason.decode(errors="replace"),
        "direct_io": bool(stats.direct_io),
    }


def _u32(name: str, value: int) -> int:
    return _within(name, value, 0, 2**32 - 1)


def _u64(name: str, value: int) -> int:
    return _within(name, value, 0, 2**64 - 1)


def _i64(name: str, value: int) -> int:
    return _within(name, value, -(2**63), 2**63 - 1)


def _within(name: str, value: int, low: int, high: int) -> int:
    # ctypes would cut the number to its field without a word.
    if not low <= value <= high:
        raise ValueError(f"{name} {value}, expected {low}..{high}")
    return value
