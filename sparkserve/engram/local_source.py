"""A checkpoint in a folder of this machine, or on a mount; read past the page cache."""

from __future__ import annotations

from pathlib import Path

from sparkserve.engram.direct_file import MAX_ALIGN_BYTES, Arena, DirectFile, EndOfFileError
from sparkserve.engram.pack_error import PackError
from sparkserve.engram.source import SourceFile
from sparkserve.model.pack import PackCode


class LocalFolder:
    """A checkpoint on this machine or on a mount."""

    parallel_reads = 1
    align_bytes = MAX_ALIGN_BYTES

    def __init__(self, path: Path) -> None:
        """Look at the folder.

        Raises:
            PackError: there is none.
        """
        self.path = path
        self.place = str(path)
        if not path.is_dir():
            raise PackError(PackCode.SOURCE_MISSING, "no such folder", path=path)

    def read_small(self, name: str, limit_bytes: int) -> bytes | None:
        """A whole file; None where there is none."""
        try:
            with (self.path / name).open("rb") as file:
                data = file.read(limit_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _error(error, self.path / name) from error
        if len(data) > limit_bytes:
            raise PackError(
                PackCode.SOURCE_HEADER, f"longer than {limit_bytes} bytes", path=self.path / name
            )
        return data

    def open(self, name: str) -> SourceFile:
        """Open a file."""
        try:
            return LocalFile(name, self.path / name)
        except OSError as error:
            raise _error(error, self.path / name) from error

    def close(self) -> None:
        """Nothing stays open here."""


class LocalFile:
    """A checkpoint's file on this machine."""

    def __init__(self, name: str, path: Path) -> None:
        self._file = DirectFile(path)
        status = self._file.status
        self.name = name
        self.place = str(path)
        self.size_bytes = status.st_size
        self.version = f"mtime:{status.st_mtime_ns}"

    def read(self, offset_bytes: int, length_bytes: int, arena: Arena) -> memoryview:
        """Exactly the bytes asked for."""
        try:
            return self._file.read(offset_bytes, length_bytes, arena)
        except EndOfFileError as error:
            raise PackError(
                PackCode.SHORT_READ,
                error.strerror or "the file ends here",
                path=self.place,
                offset_bytes=error.offset_bytes,
            ) from error
        except OSError as error:
            raise _error(error, Path(self.place)) from error

    def check_unchanged(self) -> None:
        """Compare time and size with those at the start."""
        status = self._file.status
        if (status.st_size, f"mtime:{status.st_mtime_ns}") != (self.size_bytes, self.version):
            raise PackError(
                PackCode.SOURCE_CHANGED, "the file changed while it was read", path=self.place
            )

    def close(self) -> None:
        """Close it."""
        self._file.close()


def _error(error: OSError, path: Path) -> PackError:
    missing = isinstance(error, FileNotFoundError)
    code = PackCode.SOURCE_MISSING if missing else PackCode.IO
    return PackError(code, f"cannot be read: {error.strerror or error}", path=path)
