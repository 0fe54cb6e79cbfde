"""The shared library, loaded once and checked; every call goes through ``check``."""

from __future__ import annotations

import ctypes
import errno
import functools
from pathlib import Path

_ABI_VERSION = 2


@functools.cache
def library() -> ctypes.CDLL:
    """The library that lies beside this file.

    Raises:
        OSError: it is missing or built for another machine.
        RuntimeError: it speaks another version of the interface than this package.
    """
    loaded = ctypes.CDLL(str(Path(__file__).with_name("libsparkserve_native.so")))
    loaded.spn_last_error.restype = ctypes.c_char_p
    loaded.spn_abi_version.restype = ctypes.c_uint32
    found = loaded.spn_abi_version()
    if found != _ABI_VERSION:
        raise RuntimeError(
            f"libsparkserve_native.so speaks interface {found}, expected {_ABI_VERSION}"
        )
    return loaded


def check(result: int, path: str) -> None:
    """Turn a negative result into the matching OSError.

    Raises:
        OSError: with the library's own sentence; ``errno`` and ``filename`` are set, so that
            for instance a missing file is a FileNotFoundError.
    """
    if result >= 0:
        return
    text = library().spn_last_error().decode(errors="replace")
    reason = text.removeprefix(f"{path}: ") or errno.errorcode.get(-result, str(-result))
    raise OSError(-result, reason, path)
