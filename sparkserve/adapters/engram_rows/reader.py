"""Rows of one shard: the interface the adapter reads through, and a plain reader of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from sparkserve.engram.shard import HEADER_BYTES, ShardHeader, read_header
from sparkserve.errors import ShardError


class RowReader(Protocol):
    """Reads rows of one shard; one caller at a time."""

    @property
    def header(self) -> ShardHeader:
        """Header of the shard that is read."""

    def read(self, rows: Sequence[int], out: bytearray) -> int:
        """Fill ``out`` with the rows' bytes in the order asked for.

        rows: local row numbers, 0 <= row < header.rows.rows; duplicates are allowed.
        out: len(rows) * header.row_bytes bytes.

        Returns:
            How many different rows were read.

        Raises:
            ShardError: a row lies outside the shard, or the file gave an error or fewer bytes.
        """

    def close(self) -> None:
        """Give the file back; reading afterwards is an error."""


class FileRowReader:
    """Reads with pread through the page cache: each different row once, neighbours together."""

    def __init__(self, path: Path) -> None:
        """Open and judge the shard.

        Raises:
            ShardError: missing, truncated or foreign.
        """
        self._path = path
        header = read_header(path)
        if not isinstance(header, ShardHeader):
            raise ShardError(str(path), "is strided, which this reader does not serve")
        self._header = header
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def header(self) -> ShardHeader:
        """Header of the shard that is read."""
        return self._header

    def read(self, rows: Sequence[int], out: bytearray) -> int:
        """Fill ``out`` with the rows' bytes; see RowReader."""
        width = self._header.row_bytes
        places: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row, []).append(place)
        for first, count in _runs(sorted(places)):
            data = self._read_run(first, count)
            for index in range(count):
                chunk = data[index * width : (index + 1) * width]
                for place in places[first + index]:
                    out[place * width : (place + 1) * width] = chunk
        return len(places)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _read_run(self, first: int, count: int) -> bytes:
        held = self._header.rows.rows
        if first < 0 or first + count > held:
            bad = first if first < 0 else max(first, held)
            raise ShardError(str(self._path), f"row {bad} asked for, the shard holds {held}")
        wanted = count * self._header.row_bytes
        offset = HEADER_BYTES + first * self._header.row_bytes
        parts: list[bytes] = []
        got = 0
        while got < wanted:
            try:
                part = os.pread(self._fd, wanted - got, offset + got)
            except OSError as error:
                raise ShardError(
                    str(self._path), f"read failed: {error.strerror}", offset_bytes=offset + got
                ) from error
            if not part:
                raise ShardError(
                    str(self._path),
                    f"file ends here, {wanted - got} bytes of rows are missing",
                    offset_bytes=offset + got,
                )
            parts.append(part)
            got += len(part)
        return b"".join(parts)


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending, different rows into (first, count) of neighbours."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index] != rows[index - 1] + 1:
            yield rows[start], index - start
            start = index
