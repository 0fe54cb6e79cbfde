"""How far a shard is: the note beside its part file, from which an interrupted call goes on.

A note claims nothing that is not checked again: the next call reads every chunk that is listed
here and trusts those whose checksums agree.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from sparkserve.engram.source import Checkpoint, TableSource
from sparkserve.files import PART_MARK, replace_file
from sparkserve.model.base import Model
from sparkserve.model.engram_manifest import Checksum, Sha256
from sparkserve.units import MIB

Bytes = bytes | bytearray | memoryview


class SourceIdentity(Model):
    """What the bytes of a shard come from."""

    config_sha256: str
    index_sha256: str | None
    header_sha256: str
    """Of the safetensors header of the file with the table."""
    file: str
    file_bytes: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, table: TableSource) -> SourceIdentity:
        """The identity of one layer's table."""
        return cls(
            config_sha256=checkpoint.config_sha256,
            index_sha256=checkpoint.index_sha256,
            header_sha256=table.header_sha256,
            file=table.file.name,
            file_bytes=table.file.size_bytes,
        )


class Journal(Model):
    """State of one part file; ``<shard>.part.json`` beside ``<shard>.part``."""

    schema_version: Literal[1] = 1
    source: SourceIdentity
    version: str
    """Time or ETag of the source's file; empty = unknown."""
    header_sha256: str
    """Digest of the shard's own header."""
    chunk_bytes: int = Field(ge=MIB, multiple_of=MIB)
    checksums: tuple[Checksum, ...] = ()
    """XXH3-64 of the chunks that are written, from the first on."""
    sha256: Sha256 | None = None
    """Of the whole file, once it is whole and on the disk."""


def part_path(shard: Path) -> Path:
    """Where an unfinished shard is written."""
    return shard.with_name(f"{shard.name}.part")


def journal_path(shard: Path) -> Path:
    """Where its journal lies."""
    return shard.with_name(f"{shard.name}.part.json")


def read_journal(shard: Path) -> Journal | None:
    """The journal of a shard; None where there is none or it says nothing usable.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        return Journal.model_validate_json(journal_path(shard).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_journal(shard: Path, journal: Journal) -> None:
    """Put the journal in place of the old one, and on the disk.

    Raises:
        OSError: the disk refused; the old one is intact.
    """
    replace_file(journal_path(shard), journal.model_dump_json().encode())


def note_progress(shard: Path, journal: Journal) -> None:
    """Put the journal in place of the old one, without waiting for the disk.

    A power cut may leave an older one or none that can be read: that costs work, never truth. To
    wait would cost as much as writing a chunk, since a sync flushes the chunks as well.

    Raises:
        OSError: the disk refused; the old one is intact.
    """
    path = journal_path(shard)
    part = path.with_name(f"{path.name}{PART_MARK}note")
    part.write_bytes(journal.model_dump_json().encode())
    part.replace(path)


class Digests:
    """Checksums of a file's chunks and its Sha256, from one pass in order."""

    def __init__(self) -> None:
        self.checksums: list[str] = []
        self._whole = hashlib.sha256()

    def add(self, chunk: Bytes) -> None:
        """Take the next chunk."""
        self.checksums.append(checksum(chunk))
        self._whole.update(chunk)

    @property
    def sha256(self) -> str:
        """Of all that was taken."""
        return self._whole.hexdigest()


def checksum(chunk: Bytes) -> str:
    """XXH3-64 of a chunk as 16 hex digits."""
    import xxhash

    return str(xxhash.xxh3_64_hexdigest(chunk))
