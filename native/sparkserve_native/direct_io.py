"""What direct I/O on a file demands."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Literal

from sparkserve_native.library import check, library

_SOURCES: dict[int, Literal["statx", "assumed"]] = {1: "statx", 2: "assumed"}


@dataclass(frozen=True)
class DioAlignment:
    """How buffers and offsets of direct I/O on one file must be aligned."""

    memory_bytes: int
    """Buffer addresses are multiples of this."""
    offset_bytes: int
    """File offsets and lengths are multiples of this."""
    source: Literal["statx", "assumed"]
    """``assumed`` = 4096 for both, where neither kernel (before 6.1) nor file system says."""


class _Alignment(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", ctypes.c_uint32),
        ("source", ctypes.c_uint32),
        ("memory_bytes", ctypes.c_uint32),
        ("offset_bytes", ctypes.c_uint32),
    )


def dio_alignment(path: str | os.PathLike[str]) -> DioAlignment:
    """Ask how direct I/O on a file must be aligned.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: what is the matter with the path.
        OSError: EOPNOTSUPP where the file system says that it does no direct I/O on the file.
        ValueError: the path holds a null byte.
    """
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"null byte in path: {os.fspath(path)!r}")
    out = _Alignment(struct_bytes=ctypes.sizeof(_Alignment))
    result = library().spn_get_dio_alignment(encoded, ctypes.byref(out))
    check(result, os.fspath(path))
    return DioAlignment(out.memory_bytes, out.offset_bytes, _SOURCES[out.source])
