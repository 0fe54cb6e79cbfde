"""The failure of packing or verifying: every cause has a code of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sparkserve.errors import SparkserveError
from sparkserve.model.pack import LayerResult, PackCode

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENOENT}
)
"""What the folder is to blame for, not the disk."""


class PackError(SparkserveError):
    """Packing or verifying ended; finished shards are as they were.

    code: what kind of failure; it decides the exit code.
    path: file or URL that is to blame; None = no single one.
    offset_bytes: byte of it, where one is known.
    layers: what is known of all shards of the job all the same.
    reader: engine of the serving reader that compared rows; None = none ran.
    """

    layers: tuple[LayerResult, ...] = ()
    reader: str | None = None

    def __init__(
        self,
        code: PackCode,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset_bytes: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        place = "" if self.path is None else f"{self.path}: "
        if self.path is not None and offset_bytes is not None:
            place = f"{self.path} at byte {offset_bytes}: "
        super().__init__(f"{place}{message}", hint=hint)
        self.code = code
        self.offset_bytes = offset_bytes
        self.exit_code = code.exit_code


def disk_error(error: OSError, path: Path, doing: str) -> PackError:
    """The failure that an OSError of the shards' disk means.

    doing: such as ``writing``.
    """
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return PackError(
            PackCode.DISK_FULL,
            f"{reason} while {doing}; finished shards are untouched, the part file stays for the "
            "next call",
            path=path,
            hint=f"df -h {path.parent}",
        )
    hint = f"ls -ld {path.parent} {path}" if error.errno in _PLACE else "dmesg | tail"
    return PackError(PackCode.IO, f"{reason} while {doing}", path=path, hint=hint)
