"""Files read and written past the page cache, which on a Spark is memory of the GPU.

Direct I/O where the file system offers it; else ordinary I/O whose pages are given back at once.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

PAGE_BYTES = 4096
MAX_ALIGN_BYTES = 1 << 16
"""Direct I/O that demands more than this is not used; arenas leave room for this much."""
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY})


class EndOfFileError(OSError):
    """A file ended before the bytes that were asked for; ``offset_bytes`` is where."""

    def __init__(self, path: str, offset_bytes: int, missing_bytes: int) -> None:
        super().__init__(errno.EIO, f"the file ends here, {missing_bytes} bytes are missing", path)
        self.offset_bytes = offset_bytes


class Arena:
    """Page-aligned memory that is handed out in pieces and taken back all at once."""

    def __init__(self, capacity_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(round_up(capacity_bytes, PAGE_BYTES), PAGE_BYTES))
        self._view = memoryview(self._memory)
        self._used = 0

    @property
    def view(self) -> memoryview:
        """All of it."""
        return self._view

    def take(self, length_bytes: int, align_bytes: int = 1) -> memoryview:
        """The next ``length_bytes``, at a multiple of ``align_bytes`` from the page-aligned start.

        Raises:
            MemoryError: the arena was made too small.
        """
        start = round_up(self._used, align_bytes)
        if start + length_bytes > len(self._view):
            raise MemoryError(f"arena of {len(self._view)} bytes asked for {start + length_bytes}")
        self._used = start + length_bytes
        return self._view[start : start + length_bytes]

    def reset(self) -> None:
        """Take everything back; what was handed out must no longer be used."""
        self._used = 0


class DirectFile:
    """One open file; safe to read from several threads.

    direct: whether the page cache is passed by.
    align_bytes: offsets, lengths and addresses of direct I/O are multiples of this.
    """

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        """Open it, direct where that is possible.

        Raises:
            OSError: as ``os.open`` raises it, for any reason but a refusal of direct I/O.
        """
        self.path = path
        flags |= os.O_CLOEXEC
        try:
            self.fd = os.open(path, flags | os.O_DIRECT, 0o644)
            self.direct = True
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.fd = os.open(path, flags, 0o644)
            self.direct = False
        try:
            align_bytes = _alignment(path) if self.direct else PAGE_BYTES
        except OSError:
            os.close(self.fd)
            raise
        if align_bytes is None:
            os.close(self.fd)
            self.fd = os.open(path, flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))
            self.direct, align_bytes = False, PAGE_BYTES
        self.align_bytes = align_bytes

    @property
    def status(self) -> os.stat_result:
        """What ``fstat`` says now."""
        return os.fstat(self.fd)

    def read(self, offset_bytes: int, length_bytes: int, arena: Arena) -> memoryview:
        """Exactly the bytes asked for, in memory of the arena (two alignments more are taken).

        Raises:
            EndOfFileError: the file is too short.
            OSError: the disk gave an error.
        """
        start = offset_bytes // self.align_bytes * self.align_bytes
        lead = offset_bytes - start
        needed = lead + length_bytes
        view = arena.take(round_up(needed, self.align_bytes), self.align_bytes)
        got = 0
        while got < needed:
            count = os.preadv(self.fd, [view[got:]], start + got)
            cut = self.direct and count % self.align_bytes and got + count < needed
            if count == 0 or cut:
                raise EndOfFileError(str(self.path), start + got + count, needed - got - count)
            got += count
        if not self.direct:
            os.posix_fadvise(self.fd, start, len(view), os.POSIX_FADV_DONTNEED)
        return view[lead:needed]

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Write aligned bytes at an aligned place; all of them or an error.

        Raises:
            OSError: the disk refused.
        """
        done = 0
        while done < len(data):
            done += os.pwritev(self.fd, [data[done:]], offset_bytes + done)
        if not self.direct:
            # Dirty pages are not given back: they must reach the disk first.
            os.fdatasync(self.fd)
            os.posix_fadvise(self.fd, offset_bytes, len(data), os.POSIX_FADV_DONTNEED)

    def reserve(self, length_bytes: int) -> None:
        """Let the file system set the space aside, where it can.

        Raises:
            OSError: ENOSPC or EDQUOT: there is not that much.
        """
        if length_bytes == 0:
            return
        try:
            os.posix_fallocate(self.fd, 0, length_bytes)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is not less than the number."""
    return -(-number // multiple) * multiple


def _alignment(path: Path) -> int | None:
    """Alignment for offsets and addresses; None = the file system does no direct I/O on it."""
    try:
        from sparkserve_native import dio_alignment
    except ImportError:
        return PAGE_BYTES
    try:
        found = dio_alignment(path)
    except OSError as error:
        if error.errno in _REFUSED:
            return None
        raise
    # Larger than asked for does no harm, and pages are what the buffers are made of.
    align_bytes = max(int(found.memory_bytes), int(found.offset_bytes), PAGE_BYTES)
    return align_bytes if align_bytes <= MAX_ALIGN_BYTES else None
