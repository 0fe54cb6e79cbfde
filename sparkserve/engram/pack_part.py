"""One shard from its source into its part file, going on where an earlier call stopped."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparkserve.engram.chunks import Chunk, ShardChunks
from sparkserve.engram.direct_file import DirectFile, EndOfFileError, round_up
from sparkserve.engram.journal import (
    Digests,
    Journal,
    checksum,
    journal_path,
    note_progress,
    part_path,
    write_journal,
)
from sparkserve.engram.pack_error import disk_error
from sparkserve.engram.pipeline import ByteSpan, made_chunks, pool, stored_chunks
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.source import Folder, TableSource
from sparkserve.files import PART_MARK, sync_folder


@dataclass(frozen=True)
class PartTask:
    """What to pack."""

    target: Path
    """Where the shard will stand; it is not touched here."""
    chunks: ShardChunks
    table: TableSource
    folder: Folder
    journal: Journal
    """Of the earlier call, or a fresh one."""

    @property
    def part(self) -> Path:
        """The file that is written."""
        return part_path(self.target)


def listed_bytes(task: PartTask) -> int:
    """Bytes of the part file that its journal claims; none where there is no part file."""
    if not task.part.exists():
        return 0
    return min(len(task.journal.checksums) * task.chunks.chunk_bytes, task.chunks.file_bytes)


def trusted(task: PartTask, reporter: Reporter) -> Digests:
    """Read the chunks that the journal lists, up to the first that is not as it says.

    Raises:
        PackError: the disk gave an error, or the job shall stop.
    """
    listed = listed_bytes(task)
    if listed == 0:
        return Digests()
    return _agreeing(task.part, ByteSpan(0, listed), task, reporter)


def whole_by_note(task: PartTask, reporter: Reporter) -> bool:
    """Whether the shard that stands is, byte for byte, what the journal says was packed.

    Raises:
        PackError: the disk gave an error, or the job shall stop.
    """
    if task.journal.sha256 is None or task.part.exists():
        return False
    reporter.begin("check", task.chunks.file_bytes)
    found = _agreeing(task.target, ByteSpan(0, task.chunks.file_bytes), task, reporter)
    return (tuple(found.checksums), found.sha256) == (task.journal.checksums, task.journal.sha256)


def _agreeing(path: Path, span: ByteSpan, task: PartTask, reporter: Reporter) -> Digests:
    digests = Digests()
    try:
        with DirectFile(path) as file:
            listed = iter(task.journal.checksums)
            for data in stored_chunks(file, span, task.chunks.chunk_bytes, reporter):
                if checksum(data) != next(listed, None):
                    break
                digests.add(data)
                reporter.step(task.table.layer, len(data))
    except (EndOfFileError, FileNotFoundError):
        # A file that is shorter than its journal says is trusted as far as it goes.
        return digests
    except OSError as error:
        raise disk_error(error, path, "reading what is packed already") from error
    return digests


def pack_part(task: PartTask, digests: Digests, reporter: Reporter) -> Journal:
    """Write the rest of the part file; it is whole and on the disk afterwards.

    digests: of the chunks that stand already.

    Returns:
        The journal with the checksum of every chunk and of the whole file.

    Raises:
        PackError: source or disk failed, or the job shall stop; the next call goes on.
    """
    part, file_bytes = task.part, task.chunks.file_bytes
    fresh = not part.exists()
    try:
        with DirectFile(part, os.O_RDWR | os.O_CREAT) as file:
            try:
                file.reserve(round_up(file_bytes, file.align_bytes))
            except OSError:
                if fresh:
                    part.unlink()
                raise
            _write(task, file, digests, reporter)
            os.ftruncate(file.fd, file_bytes)
            os.fsync(file.fd)
        sync_folder(part.parent)
        task.table.file.check_unchanged()
        done = _noted(task.journal, digests.checksums, sha256=digests.sha256)
        write_journal(task.target, done)
    except OSError as error:
        raise disk_error(error, part, "packing") from error
    return done


class _Pending(NamedTuple):
    chunk: Chunk
    writing: Future[None]
    hashing: Future[None]


def _write(task: PartTask, file: DirectFile, digests: Digests, reporter: Reporter) -> None:
    first = len(digests.checksums)
    made = made_chunks(task.chunks, task.table, task.folder, first, reporter)
    pending: deque[_Pending] = deque()

    notes: list[Future[None]] = []
    settled = first

    def settle() -> None:
        nonlocal settled
        chunk, writing, hashing = pending.popleft()
        reporter.result(writing)
        reporter.result(hashing)
        settled = chunk.number + 1
        # File systems take their time over renames: a note that is under way stands for this one.
        if not notes or notes[-1].done():
            noted = _noted(task.journal, digests.checksums[:settled], sha256=None)
            notes.append(noter.submit(note_progress, task.target, noted))
        reporter.step(task.table.layer, chunk.bytes)

    # The writer is left before the readers: its memory is theirs to fill again.
    try:
        with pool(1, "write") as writer, pool(1, "hash") as hasher, pool(1, "note") as noter:
            for each in made:
                data = task.chunks.padded(each.chunk, each.arena, file.align_bytes)
                writing = writer.submit(file.write, each.chunk.start, data)
                pending.append(_Pending(each.chunk, writing, hasher.submit(digests.add, each.data)))
                if len(pending) > 1:
                    settle()
            while pending:
                settle()
            for note in notes:
                reporter.result(note)
    except BaseException:
        # Without this note only work is lost, so its own failure must not hide the first one.
        with suppress(OSError):
            note_progress(
                task.target, _noted(task.journal, digests.checksums[:settled], sha256=None)
            )
        raise
    finally:
        made.close()


def drop_part(target: Path) -> None:
    """Remove a part file and its journal; the journal goes first, so that no part is believed.

    Raises:
        OSError: the folder cannot be written.
    """
    journal = journal_path(target)
    journal.unlink(missing_ok=True)
    sweep(journal)
    part_path(target).unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Remove what killed calls left of a small file that they were writing; needs the lock.

    Raises:
        OSError: the folder cannot be written.
    """
    for part in path.parent.glob(f"{path.name}{PART_MARK}*"):
        part.unlink(missing_ok=True)


def _noted(journal: Journal, checksums: Sequence[str], *, sha256: str | None) -> Journal:
    return journal.model_copy(update={"checksums": tuple(checksums), "sha256": sha256})
