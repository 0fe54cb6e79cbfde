"""Chunks one after the other while the next ones are being read by other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from sparkserve.engram.chunks import Chunk, ShardChunks
from sparkserve.engram.direct_file import MAX_ALIGN_BYTES, Arena, DirectFile
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.source import Folder, TableSource

_T = TypeVar("_T")


class Made(NamedTuple):
    """A chunk as the source says it must be; its memory is used again two chunks later."""

    chunk: Chunk
    data: memoryview
    """The chunk's bytes of the file."""
    rows: memoryview
    """All rows that touch it, whole."""
    arena: Arena


class ByteSpan(NamedTuple):
    """Bytes ``start <= byte < end`` of a file."""

    start: int
    end: int


@contextmanager
def pool(threads: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads that are gone when the block ends; what they had not begun is dropped."""
    executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def made_chunks(
    chunks: ShardChunks, table: TableSource, folder: Folder, first: int, reporter: Reporter
) -> Generator[Made]:
    """The shard's chunks from number ``first`` on, made of the source's rows.

    Raises:
        PackError: the source failed, or the job shall stop.
    """
    depth = folder.parallel_reads
    sources = [chunks.source_arena(folder.align_bytes) for _ in range(depth + 1)]
    files = [chunks.file_arena() for _ in range(2)]

    def read(number: int) -> Callable[[], Made]:
        chunk, arena = chunks.chunk(number), sources[number % len(sources)]
        runs = chunks.fetch(chunk, table, arena)

        def fill() -> Made:
            target = files[number % len(files)]
            data = chunks.fill(chunk, runs, target)
            return Made(chunk, data, chunks.place(chunk, target)[1], target)

        return fill

    for fill in _ahead(read, range(first, chunks.count), depth, reporter):
        yield fill()


def stored_chunks(
    file: DirectFile, span: ByteSpan, chunk_bytes: int, reporter: Reporter
) -> Iterator[memoryview]:
    """A file's bytes from ``start`` up to ``end`` in chunks, each valid until the next one.

    span: its start is a multiple of the chunk's size.

    Raises:
        OSError: the disk gave an error, or the file is too short (EndOfFileError).
        PackError: the job shall stop.
    """
    arenas = [Arena(chunk_bytes + 2 * MAX_ALIGN_BYTES) for _ in range(2)]

    def read(number: int) -> memoryview:
        arena = arenas[number % len(arenas)]
        arena.reset()
        start = span.start + number * chunk_bytes
        return file.read(start, min(chunk_bytes, span.end - start), arena)

    yield from _ahead(read, range(-(-(span.end - span.start) // chunk_bytes)), 1, reporter)


def _ahead(
    read: Callable[[int], _T], numbers: range, depth: int, reporter: Reporter
) -> Iterator[_T]:
    """Results in order; while one is used, up to ``depth`` further ones are read."""
    with pool(depth, "read") as readers:
        coming: deque[Future[_T]] = deque()
        for number in numbers[:depth]:
            coming.append(readers.submit(read, number))
        for number in numbers:
            result = reporter.result(coming.popleft())
            if number + depth in numbers:
                coming.append(readers.submit(read, number + depth))
            yield result
