"""Addresses of Python objects that offer the buffer protocol, read-only ones included."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

_WRITABLE = 0x1


class _PyBuffer(ctypes.Structure):
    # Py_buffer of CPython's stable interface.
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


@contextmanager
def address_of(
    buffer: Any, length_bytes: int | None, use: Literal["read", "write"]
) -> Iterator[tuple[int, int]]:
    """Pin a contiguous buffer for the time of the block; gives its address and length in bytes.

    Raises:
        TypeError: no buffer.
        BufferError: not contiguous, or read-only where it is to be written.
        ValueError: its length is not ``length_bytes``, where that is given.
    """
    view = _PyBuffer()
    flags = _WRITABLE if use == "write" else 0
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), flags)
    try:
        if length_bytes is not None and view.len != length_bytes:
            raise ValueError(f"buffer of {view.len} bytes, expected {length_bytes}")
        yield view.buf or 0, view.len
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
