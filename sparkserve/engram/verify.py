"""Are a shard's bytes the source's? Rows are asked for through the reader that serves them.

The sample is the same for everybody: rows at the edges, rows that straddle pages, and 1,024
drawn from a seed that layer and rank decide.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkserve.engram.chunks import Chunk, ShardChunks
from sparkserve.engram.direct_file import MAX_ALIGN_BYTES, Arena, DirectFile, EndOfFileError
from sparkserve.engram.journal import Bytes, Digests
from sparkserve.engram.pack_error import PackError, disk_error
from sparkserve.engram.pipeline import ByteSpan, made_chunks, pool, stored_chunks
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.rows import open_rows
from sparkserve.engram.shard import HEADER_BYTES, ShardIdentity
from sparkserve.engram.source import Folder, TableSource
from sparkserve.errors import ShardError
from sparkserve.model.engram_manifest import ManifestLayer
from sparkserve.model.pack import PackCode

if TYPE_CHECKING:
    from sparkserve_native.row_store import RowStore

RANDOM_ROWS = 1024
_EDGE_ROWS = (0, 1, 14, 15, 16, 30, 31, 32, 510, 511, 512)
_SOURCE_READS = 8
_COMPARE_BYTES = 1 << 20
_HINT = "sparkserve pack --replace  # if it happens again, look at dmesg"


@dataclass(frozen=True)
class StoredShard:
    """A shard's file, under its own name or still under that of its part."""

    path: Path
    chunks: ShardChunks

    @property
    def layer(self) -> int:
        """Which layer's."""
        return self.chunks.shard.layer


def sample_seed(layer: int, rank: int) -> int:
    """What the random rows of a shard are drawn with."""
    return layer * 1000 + rank


def sample_rows(rows: int, seed: int) -> tuple[int, ...]:
    """Rows of a file to compare: 13 at edges and page borders, then 1,024 random ones.

    rows: rows in the file; edges that it does not have are left out, none gives none.

    Notes: Python promises the stream of ``random()`` for ever, and of nothing else.
    """
    if rows == 0:
        return ()
    source = random.Random(seed)
    edges = [row for row in (*_EDGE_ROWS, rows - 2, rows - 1) if 0 <= row < rows]
    return (*edges, *(int(source.random() * rows) for _ in range(RANDOM_ROWS)))


def compare_sample(stored: StoredShard, table: TableSource, reporter: Reporter) -> tuple[int, str]:
    """Compare the sample with the source; returns how many rows, and the reader's engine.

    Raises:
        PackError: a row differs, or source or shard cannot be read.
    """
    shard = stored.chunks.shard
    rows = sample_rows(shard.header.rows_in_file, sample_seed(shard.layer, shard.rank))
    ids = [_table_row(shard, row) for row in rows]
    width = shard.row_bytes
    held = bytearray(len(ids) * width)
    with _reader(stored) as store, pool(_SOURCE_READS, "sample") as readers:
        _lookup(store, array("q", ids), held, stored)
        for place, expected in enumerate(_rows_of(table, ids, readers, reporter)):
            if held[place * width : (place + 1) * width] != expected:
                raise _differs(stored, HEADER_BYTES + rows[place] * width)
            reporter.step(stored.layer, width)
        return len(rows), store.engine


def compare_all(
    stored: StoredShard, table: TableSource, folder: Folder, reporter: Reporter
) -> tuple[Digests, str]:
    """Compare every byte with the source; returns the file's digests, and the reader's engine.

    Raises:
        PackError: a byte differs, or source or shard cannot be read.
    """
    digests = Digests()
    made = made_chunks(stored.chunks, table, folder, 0, reporter)
    arena = stored.chunks.file_arena()
    head = _head(stored)
    try:
        with _reader(stored) as store:
            for each in made:
                found, rows = stored.chunks.place(each.chunk, arena)
                _lookup(store, _ids_of(stored, each.chunk), rows, stored)
                if each.chunk.number == 0:
                    found[:HEADER_BYTES] = head
                wrong = _first_difference(found, each.data)
                if wrong is not None:
                    raise _differs(stored, each.chunk.start + wrong)
                digests.add(found)
                reporter.step(stored.layer, each.chunk.bytes)
            engine = store.engine
    finally:
        made.close()
    table.file.check_unchanged()
    return digests, engine


def checksum_all(path: Path, listed: ManifestLayer, reporter: Reporter) -> Digests:
    """Digests of a shard as it lies on the disk.

    Raises:
        PackError: it cannot be read, or is too short.
    """
    digests = Digests()
    span = ByteSpan(0, listed.bytes)
    try:
        with DirectFile(path) as file:
            for data in stored_chunks(file, span, listed.checksum_span_bytes, reporter):
                digests.add(data)
                reporter.step(listed.layer, len(data))
    except EndOfFileError as error:
        raise PackError(
            PackCode.SHORT_SHARD,
            "the file ends here",
            path=path,
            offset_bytes=error.offset_bytes,
            hint=_HINT,
        ) from error
    except OSError as error:
        raise disk_error(error, path, "reading") from error
    return digests


def compare_checksums(
    path: Path, found: Digests, listed: Sequence[str], sha256: str, span_bytes: int
) -> None:
    """Compare a file's digests with those that were noted when it was packed.

    span_bytes: what one checksum covers.

    Raises:
        PackError: they differ; names the first chunk.
    """
    for number, (seen, wanted) in enumerate(zip(found.checksums, listed, strict=True)):
        if seen != wanted:
            raise PackError(
                PackCode.VERIFY,
                f"checksum {seen} over at most {span_bytes} bytes from here, expected {wanted}",
                path=path,
                offset_bytes=number * span_bytes,
                hint=_HINT,
            )
    if found.sha256 != sha256:
        raise PackError(
            PackCode.VERIFY, f"sha256 {found.sha256}, expected {sha256}", path=path, hint=_HINT
        )


def _table_row(shard: ShardIdentity, row: int) -> int:
    """Id of a row of the file."""
    for first_id, end_id, first_row in shard.segments:
        if first_row <= row < first_row + end_id - first_id:
            return first_id + row - first_row
    raise IndexError(f"row {row} of {shard.header.rows_in_file}")


def _reader(stored: StoredShard) -> RowStore:
    try:
        return open_rows(stored.path, stored.chunks.shard)
    except ShardError as error:
        raise PackError(PackCode.SHORT_SHARD, error.message, hint=_HINT) from error
    except OSError as error:
        raise disk_error(error, stored.path, "opening it for reading rows") from error


def _lookup(store: RowStore, ids: Any, rows: Bytes, stored: StoredShard) -> None:
    """Fill ``rows`` with the rows of the ids (int64 [n]), back to back."""
    if len(ids) == 0:
        return
    try:
        store.lookup_into(ids, rows)
    except OSError as error:
        failure = disk_error(error, stored.path, "reading rows")
        failure.offset_bytes = getattr(error, "offset_bytes", None)
        raise failure from error


def _ids_of(stored: StoredShard, chunk: Chunk) -> Any:
    """Ids of a chunk's rows, int64 [n], in file order."""
    import numpy as np

    runs: list[Any] = [np.arange(*run, dtype=np.int64) for run in stored.chunks.table_rows(chunk)]
    return np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)


def _rows_of(
    table: TableSource, ids: Sequence[int], readers: ThreadPoolExecutor, reporter: Reporter
) -> Iterator[bytes]:
    """Rows as the source holds them, in the order of the ids."""

    def row(row_id: int) -> bytes:
        arena = Arena(table.dim + table.dim // 32 + 6 * MAX_ALIGN_BYTES)
        return b"".join(table.read(row_id, row_id + 1, arena))

    for coming in [readers.submit(row, row_id) for row_id in ids]:
        yield reporter.result(coming)


def _head(stored: StoredShard) -> bytes:
    try:
        with stored.path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except OSError as error:
        raise disk_error(error, stored.path, "reading") from error


def _first_difference(found: memoryview, expected: memoryview) -> int | None:
    """Index of the first byte that differs; None where there is none."""
    for start in range(0, len(expected), _COMPARE_BYTES):
        # Copies compare by memcmp; memory views compare item by item.
        one = bytes(found[start : start + _COMPARE_BYTES])
        other = bytes(expected[start : start + _COMPARE_BYTES])
        if one != other:
            return start + next(at for at in range(len(other)) if one[at] != other[at])
    return None


def _differs(stored: StoredShard, offset_bytes: int) -> PackError:
    """The failure of a shard whose byte is not the source's."""
    row = (offset_bytes - HEADER_BYTES) // stored.chunks.shard.row_bytes
    where = f"row {row} of the file" if row >= 0 else "the header"
    return PackError(
        PackCode.VERIFY,
        f"{where} differs from the source",
        path=stored.path,
        offset_bytes=offset_bytes,
        hint=_HINT,
    )
