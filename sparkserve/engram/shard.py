"""Packed shard files: what they are called, whether one is the right one, reading and writing.

A file is trusted only where its name, its header and its size say the same; and it is served only
where the header equals the one that its ``ShardIdentity`` demands. Files are only ever replaced
whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

from sparkserve.engram.header import (
    HEADER_BYTES,
    MAGIC,
    STRIDED_MAGIC,
    WEIGHTS_PER_SCALE,
    Header,
    ShardHeader,
    StridedHeader,
    row_bytes_of,
    unpack_header,
)
from sparkserve.engram.ownership import Layout, RowRange, Segment, owned_ranges, segments_of
from sparkserve.errors import ShardError
from sparkserve.files import sync_folder

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "STRIDED_MAGIC",
    "WEIGHTS_PER_SCALE",
    "Header",
    "ShardHeader",
    "ShardIdentity",
    "ShardKind",
    "ShardName",
    "StridedHeader",
    "kind_of",
    "read_header",
    "read_shard",
    "row_bytes_of",
    "unpack_header",
    "write_shard",
]

ShardKind = Literal["contiguous", "strided"]
"""What a name tells of the layout: ``columns`` and ``equal`` share one format and one name."""
_NAME = re.compile(r"engram-l(\d+)-r(\d+)of(\d+)(\.strided)?\.bin", re.ASCII)
_READERS: dict[ShardKind, Callable[[bytes, Path], Header]] = {
    "contiguous": ShardHeader.unpack,
    "strided": StridedHeader.unpack,
}


def kind_of(layout: Layout) -> ShardKind:
    """What the names of a layout's files tell."""
    return "strided" if layout == "strided" else "contiguous"


class ShardName(NamedTuple):
    """What a shard's file name says."""

    layer: int
    rank: int
    tp: int
    kind: ShardKind = "contiguous"

    @property
    def file_name(self) -> str:
        """``engram-l<layer>-r<rank>of<tp>.bin``, or ``.strided.bin``."""
        infix = ".strided" if self.kind == "strided" else ""
        return f"engram-l{self.layer}-r{self.rank}of{self.tp}{infix}.bin"

    @classmethod
    def parse(cls, file_name: str) -> ShardName | None:
        """Read a file name; None where it is not a shard's, or not as ``file_name`` writes it."""
        match = _NAME.fullmatch(file_name)
        if match is None:
            return None
        layer, rank, tp = (int(text) for text in match.groups()[:3])
        name = cls(layer, rank, tp, "strided" if match[4] else "contiguous")
        return name if name.file_name == file_name and rank < tp else None


@dataclass(frozen=True)
class ShardIdentity:
    """Which shard is meant: one rank's share of one layer's table in one layout."""

    layer: int
    rank: int
    tp: int
    layout: Layout
    bounds: tuple[int, ...]
    """Column bounds of the layer's table, [columns + 1]."""
    row_bytes: int

    @property
    def file_name(self) -> str:
        """Name of the shard's file."""
        return ShardName(self.layer, self.rank, self.tp, kind_of(self.layout)).file_name

    @property
    def total_rows(self) -> int:
        """Rows of the whole table."""
        return self.bounds[-1]

    @property
    def ranges(self) -> tuple[RowRange, ...]:
        """Row ranges of the table in the order in which the file holds them."""
        return owned_ranges(self.bounds, self.layout, self.rank, self.tp)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Which row ids the file holds, and where."""
        return segments_of(self.ranges)

    @property
    def header(self) -> Header:
        """The header that the file must begin with."""
        ranges = self.ranges
        if self.layout == "strided":
            columns = tuple(range(self.rank, len(self.bounds) - 1, self.tp))
            rows = sum(each.rows for each in ranges)
            return StridedHeader(self.layer, self.rank, self.tp, rows, self.row_bytes, columns)
        (only,) = ranges
        return ShardHeader(self.layer, *only, self.total_rows, self.row_bytes)

    def check(self, header: Header, path: Path) -> None:
        """Compare the header of ``path`` with the one this shard must have.

        Raises:
            ShardError: another format, layer, range, table or row size; the first difference is
                named with both values.
        """
        expected = self.header
        if type(header) is not type(expected):
            found, wanted = _format_of(header), _format_of(expected)
            raise ShardError(
                str(path),
                f"format {found}, expected {wanted} for layout {self.layout}",
                offset_bytes=0,
            )
        for field in fields(expected):
            seen, meant = getattr(header, field.name), getattr(expected, field.name)
            if seen != meant:
                raise ShardError(
                    str(path),
                    f"{field.name} is {seen}, but layout {self.layout} gives rank {self.rank} of "
                    f"{self.tp} {field.name} {meant} of layer {self.layer}",
                    offset_bytes=HEADER_OFFSETS[_format_of(expected)][field.name],
                )


HEADER_OFFSETS: dict[str, dict[str, int]] = {
    "DSV41EN1": {
        "layer": 8, "row_start": 16, "row_end": 24, "total_rows": 32, "row_bytes": 40,
    },
    "SPKENGS1": {
        "layer": 8, "rank": 16, "tp": 24, "rows_in_file": 32, "row_bytes": 40, "columns": 48,
    },
}  # fmt: skip
"""Byte of every header field after the magic."""


def read_header(path: Path) -> Header:
    """Header of a shard whose name, header and size agree.

    A name that is no shard's, such as that of a part file, says nothing and contradicts nothing.

    Raises:
        ShardError: missing, unreadable, truncated, oversized, foreign, or named for another
            layer, rank or format; the error names the path and the byte.
    """
    try:
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise ShardError(str(path), reason) from error
    name = ShardName.parse(path.name)
    header = unpack_header(data, path) if name is None else _READERS[name.kind](data, path)
    if size_bytes != header.file_bytes:
        word = "ends" if size_bytes < header.file_bytes else "goes on"
        raise ShardError(
            str(path),
            f"file {word} here, expected {header.file_bytes} bytes for "
            f"{header.rows_in_file} rows of {header.row_bytes} bytes, found {size_bytes}",
            offset_bytes=min(size_bytes, header.file_bytes),
        )
    if name is not None:
        _check_name(name, header, path)
    return header


def read_shard(path: Path, identity: ShardIdentity) -> Header:
    """Header of a shard that is exactly the one meant.

    Raises:
        ShardError: as ``read_header``; or a sound file of another rank, layout, table or row size.
    """
    header = read_header(path)
    identity.check(header, path)
    return header


def write_shard(path: Path, header: Header, chunks: Iterable[bytes]) -> None:
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
    sync_folder(path.parent)


def _format_of(header: Header) -> str:
    return "SPKENGS1" if isinstance(header, StridedHeader) else "DSV41EN1"


def _check_name(name: ShardName, header: Header, path: Path) -> None:
    for field, offset in HEADER_OFFSETS[_format_of(header)].items():
        told = getattr(name, field, None)
        if told is not None and told != getattr(header, field):
            raise ShardError(
                str(path),
                f"header says {field} {getattr(header, field)}, the name says {field} {told}",
                offset_bytes=offset,
            )
