"""What is to be done for each layer of a job, by what stands in the folder already.

A shard is kept where its manifest says that it came from this very source, or where it agrees with
the journal of a call that ended just before it wrote one. A whole shard of nobody is compared with
the source and adopted. Anything else that stands in the way is refused. On request everything is
packed anew and replaced, never written over.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from sparkserve.engram.chunks import ShardChunks
from sparkserve.engram.journal import Journal, SourceIdentity, part_path, read_journal
from sparkserve.engram.manifest import judge_manifest, wanted_layer
from sparkserve.engram.pack_error import PackError, disk_error
from sparkserve.engram.pack_part import PartTask, listed_bytes, whole_by_note
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.shard import ShardIdentity, read_shard
from sparkserve.engram.source import Checkpoint, TableSource
from sparkserve.errors import ShardError
from sparkserve.model.engram_manifest import (
    Difference,
    EngramManifest,
    FoundFile,
    ManifestLayer,
    WantedShards,
)
from sparkserve.model.pack import PackCode, PackJob, PlannedLayer
from sparkserve.units import MIB, format_bytes

_REPLACE = "sparkserve pack --replace  # what stands there stays until the new is whole"


@dataclass(frozen=True)
class LayerTask:
    """One layer's part of the job."""

    shard: ShardIdentity
    part: PartTask
    plan: PlannedLayer
    kept: ManifestLayer | Journal | None
    """What vouches for a shard that is kept."""

    @property
    def to_pack(self) -> bool:
        """Whether a part file is to be written."""
        return self.plan.action in ("pack", "resume", "replace")


@dataclass(frozen=True)
class Planner:
    """Decides for one job; holds what all layers share."""

    job: PackJob
    checkpoint: Checkpoint
    existing: EngramManifest | None
    """The manifest that stands there and is of this source."""
    reporter: Reporter

    @property
    def out(self) -> Path:
        """The folder of the shards."""
        return Path(self.job.out)

    def task(self, layer: int, table: TableSource) -> LayerTask:
        """Decide for one layer.

        Raises:
            PackError: something stands there that is neither of this job nor to be replaced.
        """
        shard = self.checkpoint.config.shard(layer, self.job.layout, self.job.rank, self.job.tp)
        target = self.out / shard.file_name
        journal = self._journal(target, shard, table)
        chunks = ShardChunks(shard, journal.chunk_bytes)
        part = PartTask(target, chunks, table, self.checkpoint.folder, journal)
        if target.exists():
            return self._standing(part, shard)
        action = "resume" if listed_bytes(part) else "pack"
        return self._made(part, action)

    def _standing(self, part: PartTask, shard: ShardIdentity) -> LayerTask:
        """A file stands where the shard belongs."""
        listed = self._listed(shard)
        differences = self._differences(part, listed) if listed else ()
        if listed and not differences and not self.job.replace:
            chunks = ShardChunks(shard, listed.checksum_span_bytes)
            kept = PartTask(part.target, chunks, part.table, part.folder, part.journal)
            return self._made(kept, "keep", listed)
        try:
            read_shard(part.target, shard)
        except ShardError as error:
            if self.job.replace:
                return self._made(part, "replace")
            raise PackError(
                PackCode.REWRITE_IN_PLACE,
                f"{error.message}; a shard that stands is never written over",
                hint=_REPLACE,
            ) from error
        if whole_by_note(part, self.reporter):
            return self._made(part, "keep", part.journal)
        if self.job.replace:
            return self._made(part, "replace")
        if differences:
            first = differences[0]
            raise PackError(first.code, str(first), path=part.target, hint=_REPLACE)
        return self._made(part, "adopt")

    def _made(
        self, part: PartTask, action: str, kept: ManifestLayer | Journal | None = None
    ) -> LayerTask:
        total = part.chunks.file_bytes
        done = {"keep": total, "adopt": total, "pack": 0}.get(action, listed_bytes(part))
        plan = PlannedLayer.model_validate(
            {
                "layer": part.chunks.shard.layer,
                "file": part.target.name,
                "file_bytes": total,
                "action": action,
                "done_bytes": done,
            }
        )
        return LayerTask(part.chunks.shard, part, plan, kept)

    def _listed(self, shard: ShardIdentity) -> ManifestLayer | None:
        layers = self.existing.layers if self.existing else ()
        return next((each for each in layers if each.layer == shard.layer), None)

    def _differences(self, part: PartTask, listed: ManifestLayer) -> tuple[Difference, ...]:
        status = part.target.stat()
        found = FoundFile(size_bytes=status.st_size, allocated_bytes=status.st_blocks * 512)
        wanted = wanted_shards(self.job, (part.chunks.shard,), self.checkpoint)
        files = {part.target.name: found}
        differences = judge_manifest(self.existing, wanted.model_copy(update={"files": files}))
        # A checkpoint of one file has no index that would tell it from another one.
        head, packed = part.table.header_sha256, listed.source_header_sha256
        if head != packed:
            what = f"header of {part.table.file.name}"
            differences += (Difference(PackCode.IDENTITY, what, head, packed),)
        return differences

    def _journal(self, target: Path, shard: ShardIdentity, table: TableSource) -> Journal:
        """The journal to go on with: the one that lies there, or a fresh one."""
        fresh = Journal(
            source=SourceIdentity.of(self.checkpoint, table),
            version=table.file.version,
            header_sha256=hashlib.sha256(shard.header.pack()).hexdigest(),
            chunk_bytes=self.job.chunk_mib * MIB,
        )
        try:
            found = read_journal(target)
        except OSError as error:
            raise disk_error(error, target, "reading the journal") from error
        if found is None:
            return fresh
        code = _other(found, fresh)
        if code is None:
            return found.model_copy(update={"version": fresh.version})
        if self.job.replace:
            return fresh
        raise PackError(
            code,
            "an earlier call packed a part of it from another source, or for another table",
            path=part_path(target),
            hint="sparkserve pack --replace  # drops the part file",
        )


def wanted_shards(
    job: PackJob, shards: tuple[ShardIdentity, ...], checkpoint: Checkpoint
) -> WantedShards:
    """What a manifest must say for these shards and this source."""
    return WantedShards(
        rank=job.rank,
        tp=job.tp,
        layout=job.layout,
        layers=tuple(wanted_layer(shard) for shard in shards),
        config_sha256=checkpoint.config_sha256,
        index_sha256=checkpoint.index_sha256,
    )


def check_space(tasks: tuple[LayerTask, ...], job: PackJob) -> tuple[int, int]:
    """(free, needed) bytes of the folder's disk.

    Raises:
        PackError: less is free than the shards and the reserve need.
    """
    out = Path(job.out)
    status = os.statvfs(out)
    free = status.f_bavail * status.f_frsize
    needed = sum(_needed(task) for task in tasks if task.to_pack)
    reserve = round(job.reserve_gib * 2**30)
    if needed and free < needed + reserve:
        raise PackError(
            PackCode.NO_SPACE,
            f"{format_bytes(free)} free, expected {format_bytes(needed)} for the shards and "
            f"{format_bytes(reserve)} of reserve",
            path=out,
            hint=f"df -h {out}; --reserve-gib sets the reserve",
        )
    return free, needed


def _needed(task: LayerTask) -> int:
    try:
        taken = task.part.part.stat().st_blocks * 512
    except FileNotFoundError:
        taken = 0
    return max(task.plan.file_bytes - taken, 0)


def _other(found: Journal, fresh: Journal) -> PackCode | None:
    if (found.source, found.header_sha256) != (fresh.source, fresh.header_sha256):
        return PackCode.IDENTITY
    # Times of a mount and ETags of a server cannot be compared with each other.
    if found.version.partition(":")[0] == fresh.version.partition(":")[0]:
        return PackCode.SOURCE_CHANGED if found.version != fresh.version else None
    return None
