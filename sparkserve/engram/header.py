"""The first 4096 bytes of a packed shard, in its two formats (drawn in docs/format).

``DSV41EN1`` holds one run of the table's rows and is read by other projects too. ``SPKENGS1``
holds every tp-th hash column. Both are followed by rows of ``dim`` e4m3 bytes and ``dim / 32``
e8m0 bytes, back to back. There is no checksum here (the manifest has them), so every defect that
can be seen without one is answered by its own sentence, with the byte it stands at.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkserve.engram.ownership import RowRange, Segment, segments_of
from sparkserve.errors import ConfigError, ShardError

MAGIC = int.from_bytes(b"DSV41EN1", "little")
STRIDED_MAGIC = int.from_bytes(b"SPKENGS1", "little")
HEADER_BYTES = 4096
WEIGHTS_PER_SCALE = 32
_MAGIC = struct.Struct("<Q")
_FIELDS = struct.Struct("<6Q")
_STRIDED_FIELDS = struct.Struct("<7Q")
MAX_COLUMNS = (HEADER_BYTES - _STRIDED_FIELDS.size) // 4
"""Most column indices that fit a SPKENGS1 header (1010)."""


def row_bytes_of(dim: int) -> int:
    """Bytes of one row of ``dim`` weights (a multiple of 32)."""
    return dim + dim // WEIGHTS_PER_SCALE


@dataclass(frozen=True)
class ShardHeader:
    """DSV41EN1: rows ``row_start <= row < row_end`` of one table (``columns``, ``equal``)."""

    layer: int
    row_start: int
    row_end: int
    total_rows: int
    """Rows of the whole table."""
    row_bytes: int

    @property
    def rows(self) -> RowRange:
        """The rows the file holds."""
        return RowRange(self.row_start, self.row_end)

    @property
    def rows_in_file(self) -> int:
        """How many rows follow the header."""
        return self.row_end - self.row_start

    @property
    def file_bytes(self) -> int:
        """Exact size of the whole file."""
        return HEADER_BYTES + self.rows_in_file * self.row_bytes

    @property
    def dim(self) -> int:
        """Weights per row."""
        return _dim(self.row_bytes)

    def segments(self, bounds: Sequence[int]) -> tuple[Segment, ...]:
        """Which row ids the file holds, and where.

        bounds: column bounds of the table.

        Raises:
            ConfigError: the bounds are of another table.
        """
        if bounds[-1] != self.total_rows:
            raise ConfigError(
                f"the columns end at row {bounds[-1]}, the shard's table has {self.total_rows} rows"
            )
        return segments_of((self.rows,))

    def pack(self) -> bytes:
        """The 4096 header bytes."""
        fields = (self.layer, self.row_start, self.row_end, self.total_rows, self.row_bytes)
        return _FIELDS.pack(MAGIC, *fields).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes, path: Path) -> ShardHeader:
        """Read the header bytes of ``path``.

        Raises:
            ShardError: too short, foreign magic, impossible fields or a non-zero reserve; the
                error names the byte.
        """
        refuse = _Refusal(path)
        _check_length(data, refuse)
        magic, layer, start, end, total, row_bytes = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise refuse(0, f"magic {magic:#018x}, expected {MAGIC:#018x} (DSV41EN1)")
        if start > end:
            raise refuse(16, f"rows {start} to {end} run backwards")
        if end > total:
            raise refuse(24, f"rows end at {end}, but the table has {total} rows")
        _check_row_bytes(row_bytes, refuse)
        _check_reserve(data, _FIELDS.size, refuse)
        return cls(layer, start, end, total, row_bytes)


@dataclass(frozen=True)
class StridedHeader:
    """SPKENGS1: whole hash columns of one table, every tp-th one from the rank's own number on.

    The file does not say how many rows the whole table has: its bounds are needed to find a row.
    """

    layer: int
    rank: int
    tp: int
    rows_in_file: int
    row_bytes: int
    columns: tuple[int, ...]
    """The columns in the file, ascending: rank, rank + tp, rank + 2 tp, ..."""

    @property
    def file_bytes(self) -> int:
        """Exact size of the whole file."""
        return HEADER_BYTES + self.rows_in_file * self.row_bytes

    @property
    def dim(self) -> int:
        """Weights per row."""
        return _dim(self.row_bytes)

    def segments(self, bounds: Sequence[int]) -> tuple[Segment, ...]:
        """Which row ids the file holds, and where: column after column.

        bounds: column bounds of the table.

        Raises:
            ConfigError: the bounds are of another table.
        """
        expected = tuple(range(self.rank, len(bounds) - 1, self.tp))
        if self.columns != expected:
            raise ConfigError(
                f"the shard holds columns {list(self.columns)}, rank {self.rank} of {self.tp} "
                f"owns {list(expected)}"
            )
        ranges = tuple(RowRange(bounds[column], bounds[column + 1]) for column in self.columns)
        rows = sum(each.rows for each in ranges)
        if rows != self.rows_in_file:
            raise ConfigError(
                f"the shard's columns have {rows} rows, but the file holds {self.rows_in_file}"
            )
        return segments_of(ranges)

    def pack(self) -> bytes:
        """The 4096 header bytes.

        Raises:
            ConfigError: more columns than the header has room for.
        """
        count = len(self.columns)
        if count > MAX_COLUMNS:
            raise ConfigError(f"{count} columns in one shard, expected at most {MAX_COLUMNS}")
        fields = (self.layer, self.rank, self.tp, self.rows_in_file, self.row_bytes, count)
        indices = struct.pack(f"<{count}I", *self.columns)
        return (_STRIDED_FIELDS.pack(STRIDED_MAGIC, *fields) + indices).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes, path: Path) -> StridedHeader:
        """Read the header bytes of ``path``.

        Raises:
            ShardError: too short, foreign magic, impossible fields or a non-zero reserve; the
                error names the byte.
        """
        refuse = _Refusal(path)
        _check_length(data, refuse)
        magic, layer, rank, tp, rows, row_bytes, count = _STRIDED_FIELDS.unpack_from(data)
        if magic != STRIDED_MAGIC:
            raise refuse(0, f"magic {magic:#018x}, expected {STRIDED_MAGIC:#018x} (SPKENGS1)")
        if rank >= tp:
            raise refuse(16, f"rank {rank} of {tp} ranks, expected a smaller one")
        _check_row_bytes(row_bytes, refuse, offset_bytes=40)
        if count > MAX_COLUMNS:
            raise refuse(48, f"{count} columns, expected at most {MAX_COLUMNS}")
        if (rows == 0) != (count == 0):
            raise refuse(32, f"{rows} rows in {count} columns")
        columns = struct.unpack_from(f"<{count}I", data, _STRIDED_FIELDS.size)
        for index, column in enumerate(columns):
            if column != rank + index * tp:
                raise refuse(
                    _STRIDED_FIELDS.size + 4 * index,
                    f"column {column}, expected {rank + index * tp} for rank {rank} of {tp}",
                )
        _check_reserve(data, _STRIDED_FIELDS.size + 4 * count, refuse)
        return cls(layer, rank, tp, rows, row_bytes, columns)


Header = ShardHeader | StridedHeader


def unpack_header(data: bytes, path: Path) -> Header:
    """Read the header bytes of ``path`` in the format that its magic names.

    Raises:
        ShardError: as the two formats raise it; the magic of neither.
    """
    _check_length(data, _Refusal(path))
    magic: int = _MAGIC.unpack_from(data)[0]
    if magic == MAGIC:
        return ShardHeader.unpack(data, path)
    if magic == STRIDED_MAGIC:
        return StridedHeader.unpack(data, path)
    raise _Refusal(path)(
        0,
        f"magic {magic:#018x}, expected {MAGIC:#018x} (DSV41EN1) or {STRIDED_MAGIC:#018x} "
        "(SPKENGS1)",
    )


@dataclass(frozen=True)
class _Refusal:
    """Makes the errors of one file."""

    path: Path

    def __call__(self, offset_bytes: int, message: str) -> ShardError:
        return ShardError(str(self.path), message, offset_bytes=offset_bytes)


def _dim(row_bytes: int) -> int:
    return row_bytes * WEIGHTS_PER_SCALE // (WEIGHTS_PER_SCALE + 1)


def _check_length(data: bytes, refuse: _Refusal) -> None:
    if len(data) < HEADER_BYTES:
        raise refuse(len(data), f"header ends here, expected {HEADER_BYTES} bytes")


def _check_row_bytes(row_bytes: int, refuse: _Refusal, *, offset_bytes: int = 40) -> None:
    if row_bytes == 0 or row_bytes % (WEIGHTS_PER_SCALE + 1):
        raise refuse(offset_bytes, f"{row_bytes} bytes per row, expected a multiple of 33")


def _check_reserve(data: bytes, start: int, refuse: _Refusal) -> None:
    reserve = data[start:HEADER_BYTES]
    if reserve.strip(b"\0"):
        first = len(reserve) - len(reserve.lstrip(b"\0")) + start
        raise refuse(first, f"reserved byte is {data[first]:#04x}, expected 0")
