"""A shard's file as chunks: which rows each one needs, and how its bytes are made of them.

Every chunk is made by itself, from the table's rows alone, so packing can begin anywhere. A chunk
starts at a multiple of its size in the file, which direct I/O needs, and so may begin and end
inside a row; the rows at both edges are then read for two chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparkserve.engram.direct_file import MAX_ALIGN_BYTES, PAGE_BYTES, Arena, round_up
from sparkserve.engram.ownership import RowRange
from sparkserve.engram.shard import HEADER_BYTES, ShardIdentity
from sparkserve.engram.source import TableSource


class Chunk(NamedTuple):
    """Bytes ``start <= byte < end`` of a shard's file, and the file's rows that they touch."""

    number: int
    start: int
    end: int
    first_row: int
    end_row: int

    @property
    def bytes(self) -> int:
        """How many bytes of the file."""
        return self.end - self.start


class RowBytes(NamedTuple):
    """A run of rows as the source holds them."""

    weights: memoryview
    scales: memoryview


@dataclass(frozen=True)
class ShardChunks:
    """How one shard's file is cut."""

    shard: ShardIdentity
    chunk_bytes: int

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.shard.header.file_bytes

    @property
    def count(self) -> int:
        """How many chunks; at least one, which holds the header."""
        return -(-self.file_bytes // self.chunk_bytes)

    def chunk(self, number: int) -> Chunk:
        """The chunk with this number."""
        start = number * self.chunk_bytes
        end = min(start + self.chunk_bytes, self.file_bytes)
        row_bytes = self.shard.row_bytes
        first = max(start - HEADER_BYTES, 0) // row_bytes
        last = -(-max(end - HEADER_BYTES, 0) // row_bytes)
        return Chunk(number, start, end, first, last)

    def table_rows(self, chunk: Chunk) -> tuple[RowRange, ...]:
        """The chunk's rows as runs of the table, in file order."""
        runs = []
        for first_id, end_id, first_row in self.shard.segments:
            start = max(chunk.first_row, first_row)
            end = min(chunk.end_row, first_row + end_id - first_id)
            if start < end:
                runs.append(RowRange(first_id + start - first_row, first_id + end - first_row))
        return tuple(runs)

    def source_arena(self, align_bytes: int) -> Arena:
        """Memory for the source's rows of any one chunk."""
        runs = max(len(self.shard.ranges), 1)
        rows = self.chunk_bytes + 2 * self.shard.row_bytes
        return Arena(rows + runs * 2 * 3 * align_bytes)

    def file_arena(self) -> Arena:
        """Memory for any one chunk as ``place`` lays it out."""
        rows = round_up(self.shard.row_bytes, PAGE_BYTES)
        return Arena(rows + self.chunk_bytes + rows + MAX_ALIGN_BYTES)

    def place(self, chunk: Chunk, arena: Arena) -> tuple[memoryview, memoryview]:
        """Where a chunk lies in an arena: its bytes of the file, and its whole rows.

        The first view begins page-aligned; the second holds all rows that touch the chunk, so it
        may begin a bit before the first and end a bit after.
        """
        lead = round_up(self.shard.row_bytes, PAGE_BYTES)
        rows_start = HEADER_BYTES + chunk.first_row * self.shard.row_bytes
        offset = lead + rows_start - chunk.start
        length = (chunk.end_row - chunk.first_row) * self.shard.row_bytes
        return arena.view[lead : lead + chunk.bytes], arena.view[offset : offset + length]

    def padded(self, chunk: Chunk, arena: Arena, align_bytes: int) -> memoryview:
        """The chunk's bytes in an arena with as many more as direct I/O needs."""
        lead = round_up(self.shard.row_bytes, PAGE_BYTES)
        return arena.view[lead : lead + round_up(chunk.bytes, align_bytes)]

    def fetch(self, chunk: Chunk, table: TableSource, arena: Arena) -> list[RowBytes]:
        """Read the chunk's rows from the source.

        Raises:
            PackError: the source failed.
        """
        arena.reset()
        return [RowBytes(*table.read(*run, arena)) for run in self.table_rows(chunk)]

    def fill(self, chunk: Chunk, runs: Sequence[RowBytes], arena: Arena) -> memoryview:
        """Lay the source's rows out as the file holds them; returns the chunk's bytes."""
        data, rows = self.place(chunk, arena)
        scale_bytes = self.shard.header.dim // 32
        start = 0
        for run in runs:
            count = len(run.scales) // scale_bytes
            end = start + count * self.shard.row_bytes
            interleave(run.weights, run.scales, rows[start:end], scale_bytes)
            start = end
        if chunk.number == 0:
            data[:HEADER_BYTES] = self.shard.header.pack()
        return data


def interleave(weights: memoryview, scales: memoryview, rows: memoryview, scale_bytes: int) -> None:
    """Put each row's scales behind its weights.

    weights: (n, 32 * scale_bytes) bytes. scales: (n, scale_bytes) bytes.
    rows: (n, 33 * scale_bytes) bytes, written.
    """
    import numpy as np

    weight_bytes = 32 * scale_bytes
    # Opaque items are moved whole; byte arrays would be moved by an inner loop per row.
    item = np.dtype([("w", f"V{weight_bytes}"), ("s", f"V{scale_bytes}")])
    out = np.frombuffer(rows, dtype=item)
    out["w"] = np.frombuffer(weights, dtype=f"V{weight_bytes}")
    out["s"] = np.frombuffer(scales, dtype=f"V{scale_bytes}")
