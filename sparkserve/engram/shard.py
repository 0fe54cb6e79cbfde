"""The packed shard file DSV41EN1: one rank's rows of one Engram layer, back to back.

::

    byte      0  u64  magic 0x314E453134565344, ASCII "DSV41EN1"
              8  u64  layer
             16  u64  first row (row_start)
             24  u64  one past the last row (row_end)
             32  u64  rows of the whole table
             40  u64  bytes per row = dim + dim / 32
             48  ...  zero up to byte 4096
           4096       rows row_start .. row_end - 1, without padding

All fields are little-endian. A row is ``dim`` e4m3 bytes and then ``dim / 32`` e8m0 bytes, one
scale per 32 weights, as they lie in the checkpoint (264 bytes for dim 256, the only size that
other readers of this format accept). The file name is ``engram-l<layer>-r<rank>of<tp>.bin``.
The format has no checksum: every defect that can be seen without one is answered by its own
sentence, and a file is only ever replaced whole.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparkserve.engram.ownership import RowRange
from sparkserve.errors import ShardError

MAGIC = int.from_bytes(b"DSV41EN1", "little")
HEADER_BYTES = 4096
WEIGHTS_PER_SCALE = 32
_FIELDS = struct.Struct("<6Q")
_NAME = re.compile(r"engram-l(\d+)-r(\d+)of(\d+)\.bin")


def row_bytes_of(dim: int) -> int:
    """Bytes of one row of ``dim`` weights (a multiple of 32)."""
    return dim + dim // WEIGHTS_PER_SCALE


class ShardName(NamedTuple):
    """What a shard's file name says."""

    layer: int
    rank: int
    tp: int

    @property
    def file_name(self) -> str:
        """``engram-l<layer>-r<rank>of<tp>.bin``."""
        return f"engram-l{self.layer}-r{self.rank}of{self.tp}.bin"

    @classmethod
    def parse(cls, file_name: str) -> ShardName | None:
        """Read a file name; None where it is not a shard's."""
        match = _NAME.fullmatch(file_name)
        return cls(*(int(text) for text in match.groups())) if match else None


@dataclass(frozen=True)
class ShardHeader:
    """The header's fields, in file order."""

    layer: int
    row_start: int
    row_end: int
    total_rows: int
    row_bytes: int

    @property
    def rows(self) -> RowRange:
        """The rows the file holds."""
        return RowRange(self.row_start, self.row_end)

    @property
    def file_bytes(self) -> int:
        """Exact size of the whole file."""
        return HEADER_BYTES + (self.row_end - self.row_start) * self.row_bytes

    @property
    def dim(self) -> int:
        """Weights per row."""
        return self.row_bytes * WEIGHTS_PER_SCALE // (WEIGHTS_PER_SCALE + 1)

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

        def refuse(offset_bytes: int, message: str) -> ShardError:
            return ShardError(str(path), message, offset_bytes=offset_bytes)

        if len(data) < HEADER_BYTES:
            raise refuse(len(data), f"header ends here, expected {HEADER_BYTES} bytes")
        magic, layer, start, end, total, row_bytes = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise refuse(0, f"magic {magic:#018x}, expected {MAGIC:#018x} (DSV41EN1)")
        if start > end:
            raise refuse(16, f"rows {start} to {end} run backwards")
        if end > total:
            raise refuse(24, f"rows end at {end}, but the table has {total} rows")
        if row_bytes == 0 or row_bytes % (WEIGHTS_PER_SCALE + 1):
            raise refuse(40, f"{row_bytes} bytes per row, expected a multiple of 33")
        reserve = data[_FIELDS.size : HEADER_BYTES]
        if reserve.strip(b"\0"):
            first = len(reserve) - len(reserve.lstrip(b"\0")) + _FIELDS.size
            raise refuse(first, f"reserved byte is {data[first]:#04x}, expected 0")
        return cls(layer, start, end, total, row_bytes)


def read_header(path: Path) -> ShardHeader:
    """Header of a shard whose name, header and size agree.

    Raises:
        ShardError: missing, unreadable, truncated, oversized, foreign, or named for another
            layer; the error names the path and the byte.
    """
    try:
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise ShardError(str(path), reason) from error
    header = ShardHeader.unpack(data, path)
    if size_bytes != header.file_bytes:
        word = "ends" if size_bytes < header.file_bytes else "goes on"
        raise ShardError(
            str(path),
            f"file {word} here, expected {header.file_bytes} bytes for "
            f"{header.rows.rows} rows of {header.row_bytes} bytes, found {size_bytes}",
            offset_bytes=min(size_bytes, header.file_bytes),
        )
    name = ShardName.parse(path.name)
    if name is not None and name.layer != header.layer:
        raise ShardError(
            str(path),
            f"header says layer {header.layer}, the name says layer {name.layer}",
            offset_bytes=8,
        )
    return header


def write_shard(path: Path, header: ShardHeader, chunks: Iterable[bytes]) -> None:
    """Write a whole shard: part file, fsync, rename, fsync of the directory.

    chunks: the rows' bytes in order, in pieces of any size.

    Raises:
        ShardError: the chunks do not add up to the header's rows; nothing is left behind.
        OSError: the disk refused; nothing is left behind.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(header.pack())
            for chunk in chunks:
                file.write(chunk)
            written_bytes = file.tell()
            file.flush()
            os.fsync(file.fileno())
        if written_bytes != header.file_bytes:
            raise ShardError(
                str(path),
                f"{written_bytes} bytes given, expected {header.file_bytes}",
                offset_bytes=min(written_bytes, header.file_bytes),
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
