"""Packing of Engram rows: what a node is told (jobs) and what it says while it works (events).

A job is one JSON file per rank; it holds no secret (a bearer token lies in a file of its own).
The node answers with one event per line on stdout and ends with ``done`` or ``failed``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from sparkserve.errors import ExitCode
from sparkserve.model.base import Model
from sparkserve.model.layout import Layout


class PackCode(StrEnum):
    """What can be wrong with a pack; the vocabulary of findings and of failures."""

    JOB = "PCK_JOB"
    """The job contradicts itself or the model's config.json."""
    LOCKED = "PCK_LOCKED"
    """Another packer works on the same rank in the same folder."""
    NO_SPACE = "PCK_NO_SPACE"
    """Before anything was written: less free space than the shards and the reserve need."""
    DISK_FULL = "PCK_DISK_FULL"
    """The disk became full while packing; finished shards are untouched."""
    IO = "PCK_IO"
    """The disk or the file system answered with an error."""
    SOURCE_MISSING = "PCK_SOURCE_MISSING"
    """A folder or file of the source is not there."""
    SOURCE_UNREACHABLE = "PCK_SOURCE_UNREACHABLE"
    """The server of the source does not answer, or keeps answering with errors."""
    SOURCE_REFUSED = "PCK_SOURCE_REFUSED"
    """The server wants a token, or another one."""
    SOURCE_HEADER = "PCK_SOURCE_HEADER"
    """config.json, the index or a safetensors header is truncated or malformed."""
    SOURCE_CHANGED = "PCK_SOURCE_CHANGED"
    """A file of the source became another one while it was read."""
    SHORT_READ = "PCK_SHORT_READ"
    """The source ended, or a server gave other bytes than asked for."""
    TENSOR_MISSING = "PCK_TENSOR_MISSING"
    """The checkpoint has no Engram table for a layer."""
    TENSOR_SPLIT = "PCK_TENSOR_SPLIT"
    """A layer's weights and scales lie in different files."""
    DTYPE = "PCK_DTYPE"
    """A tensor is not F8_E4M3 (weights) or F8_E8M0 (scales)."""
    SHAPE = "PCK_SHAPE"
    """A tensor's shape or extent differs from what config.json says."""
    PRIMES = "PCK_PRIMES"
    """The hash columns' primes do not add up to the table's rows."""
    REWRITE_IN_PLACE = "PCK_REWRITE_IN_PLACE"
    """A foreign or invalid file stands where the shard belongs; it is never written over."""
    IDENTITY = "PCK_IDENTITY"
    """The shards were packed from another checkpoint than the one wanted."""
    VERIFY = "PCK_VERIFY"
    """A shard's bytes differ from the source, or from the manifest's checksums."""
    MANIFEST = "PCK_MANIFEST"
    """A manifest is missing, unreadable or not one of ours."""
    SHORT_SHARD = "PCK_SHORT_SHARD"
    """A shard is missing, shorter or longer than its rows, or has holes."""
    WORLD_OR_REVISION = "PCK_WORLD_OR_REVISION"
    """Packed for another number of ranks, another rank or another revision."""
    LAYOUT_FLAG = "PCK_LAYOUT_FLAG"
    """Packed with another row ownership rule."""
    TABLE = "PCK_TABLE"
    """Packed for a table with other rows, columns or row size."""
    SLOW = "PCK_SLOW"
    """Warning: less than 50 MB/s for 30 s."""
    INTERRUPTED = "PCK_INTERRUPTED"
    """Stopped by a signal; the next call goes on from here."""
    BUG = "PCK_BUG"
    """A mistake of sparkserve's own."""

    @property
    def exit_code(self) -> ExitCode:
        """What a process that fails with this ends with."""
        return _EXIT_CODES.get(self, ExitCode.CONFIG)


_EXIT_CODES = {
    PackCode.NO_SPACE: ExitCode.UNFIT,
    PackCode.DISK_FULL: ExitCode.UNFIT,
    PackCode.IO: ExitCode.UNFIT,
    PackCode.SHORT_READ: ExitCode.UNFIT,
    PackCode.SHORT_SHARD: ExitCode.FINDINGS,
    PackCode.SOURCE_UNREACHABLE: ExitCode.UNREACHABLE,
    PackCode.SOURCE_REFUSED: ExitCode.UNREACHABLE,
    PackCode.IDENTITY: ExitCode.FINDINGS,
    PackCode.VERIFY: ExitCode.FINDINGS,
    PackCode.MANIFEST: ExitCode.FINDINGS,
    PackCode.WORLD_OR_REVISION: ExitCode.FINDINGS,
    PackCode.LAYOUT_FLAG: ExitCode.FINDINGS,
    PackCode.TABLE: ExitCode.FINDINGS,
    PackCode.INTERRUPTED: ExitCode.INTERRUPTED,
    PackCode.BUG: ExitCode.INTERNAL,
}


class _RankJob(Model):
    """What both jobs say: whose shards, and where."""

    schema_version: Literal[1] = 1
    out: str
    """Absolute folder of the shards."""
    tp: int = Field(ge=1)
    """Tensor-parallel ranks."""
    rank: int = Field(ge=0)
    layers: tuple[int, ...] | None = None
    """Engram layers; None = all that config.json names."""
    layout: Layout = "columns"
    revision: str | None = None
    """Revision of the checkpoint, as the profile pins it; goes into the manifest."""
    token_file: str | None = None
    """File of mode 0600 with the bearer token of an http(s) source."""

    @model_validator(mode="after")
    def _rank_exists(self) -> Self:
        if self.rank >= self.tp:
            raise ValueError(f"rank {self.rank} of {self.tp}: ranks count from 0")
        if self.layers is not None and not self.layers:
            raise ValueError("layers is empty; leave it out for all layers")
        return self


class PackJob(_RankJob):
    """Pack one rank's rows (``python -m sparkserve.node pack --job FILE``)."""

    source: str
    """Folder of the checkpoint, or the http(s) URL of one."""
    reserve_gib: float = Field(default=8.0, ge=0)
    """Free space that must remain on the disk."""
    verify: Literal["none", "sample", "full"] = "sample"
    """What is compared with the source, through the serving reader, before the shards count."""
    chunk_mib: int = Field(default=64, ge=1, le=256)
    """Bytes per read, interleave and write; the packer holds at most about seven of them."""
    replace: bool = False
    """Pack anew whatever stands there; it is replaced only when the new shards are whole."""


class VerifyJob(_RankJob):
    """Judge one rank's shards (``python -m sparkserve.node verify-engram --job FILE``)."""

    source: str | None = None
    """The checkpoint to compare with; None = the manifest's checksums alone."""
    verify: Literal["sample", "full"] = "sample"


Phase = Literal["check", "hash", "pack", "verify"]
"""``check`` and ``hash`` = what an earlier, interrupted call packed is read again before it is
trusted: whole shards, then parts."""


class PlannedLayer(Model):
    """What will be done for one layer."""

    layer: int
    file: str
    """File name in the job's folder."""
    file_bytes: int
    action: Literal["pack", "resume", "keep", "adopt", "replace"]
    """``adopt`` = a whole shard without a manifest is compared with the source and kept."""
    done_bytes: int
    """Bytes that need not be written again."""


class PackPlanned(Model):
    """The job was checked; nothing has been written yet."""

    event: Literal["planned"] = "planned"
    layers: tuple[PlannedLayer, ...]
    free_bytes: int
    needed_bytes: int
    """What will be written, without the reserve."""


class PackProgress(Model):
    """How far a phase is, over all layers of the job; at most a few per second."""

    event: Literal["progress"] = "progress"
    layer: int
    phase: Phase
    done_bytes: int
    """Of this phase, over all layers of the job; kept shards count as packed."""
    total_bytes: int
    bytes_per_s: float
    """Over the last seconds; 0 at first."""


class PackWarning(Model):
    """Something that does not stop the job."""

    event: Literal["warning"] = "warning"
    code: PackCode
    message: str
    hint: str | None = None


class LayerResult(Model):
    """How one layer stands at the end."""

    layer: int
    file: str
    file_bytes: int
    sha256: str
    action: Literal["packed", "resumed", "kept", "adopted", "replaced", "verified"]
    checksums: Literal["pass", "unknown"] = "unknown"
    """Whether the file's checksums were computed in this call and agreed with the manifest."""
    against_source: Literal["none", "sample", "full"] = "none"
    """What was compared with the source through the serving reader; none is not a pass."""
    compared_rows: int = 0
    failure: str = ""
    """What is wrong with the shard; empty = nothing that was looked at."""


class PackDone(Model):
    """The job ended well."""

    event: Literal["done"] = "done"
    manifest: str
    """Path of the manifest."""
    manifest_digest: str
    """Sha256 of the manifest's file."""
    layers: tuple[LayerResult, ...]
    seconds: float
    written_bytes: int
    reader: str | None = None
    """Engine of the serving reader that compared rows, such as ``io_uring``; None = none ran."""


class PackFailed(Model):
    """The job ended here; what was whole before still is."""

    event: Literal["failed"] = "failed"
    code: PackCode
    message: str
    hint: str | None = None
    exit_code: int
    path: str | None = None
    offset_bytes: int | None = None
    layers: tuple[LayerResult, ...] = ()
    """Verifying: every layer that was judged, since one bad shard says nothing of the others."""
    reader: str | None = None
    """Engine of the serving reader that compared rows; None = none ran."""


PackEvent = Annotated[
    PackPlanned | PackProgress | PackWarning | PackDone | PackFailed,
    Field(discriminator="event"),
]
_EVENTS: TypeAdapter[PackEvent] = TypeAdapter(PackEvent)


def read_event(line: str | bytes) -> PackEvent:
    """One line of a node's answer.

    Raises:
        ValueError: not an event of ours (pydantic's ValidationError is one).
    """
    return _EVENTS.validate_json(line)
