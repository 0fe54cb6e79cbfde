"""A shard that is whole: what vouches for it, and what the manifest will say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sparkserve.engram.journal import Journal
from sparkserve.engram.manifest import bounds_sha256
from sparkserve.engram.pack_plan import LayerTask
from sparkserve.engram.verify import StoredShard, sample_rows, sample_seed
from sparkserve.model.engram_manifest import ManifestLayer, RowSpan
from sparkserve.model.pack import LayerResult

Verified = Literal["none", "sample", "full"]
_STRENGTH: tuple[Verified, ...] = ("none", "sample", "full")
_ACTIONS: dict[str, Literal["packed", "resumed", "kept", "adopted", "replaced"]] = {
    "pack": "packed",
    "resume": "resumed",
    "keep": "kept",
    "adopt": "adopted",
    "replace": "replaced",
}


@dataclass
class WholeShard:
    """A layer whose file is whole, under its own name or still under that of its part."""

    task: LayerTask
    checksums: tuple[str, ...]
    sha256: str
    verified: Verified = "none"
    compared_rows: int = 0
    checksums_seen: bool = False
    """Whether they were computed from the file in this call."""

    @property
    def stored(self) -> StoredShard:
        """Where the bytes are now."""
        part = self.task.part
        path = part.part if self.task.to_pack else part.target
        return StoredShard(path, part.chunks)


def whole_by_journal(task: LayerTask, journal: Journal) -> WholeShard:
    """A shard that this call packed, or an earlier one that got no further."""
    return WholeShard(task, journal.checksums, journal.sha256 or "")


def kept(task: LayerTask) -> WholeShard:
    """A shard that stands and is vouched for."""
    match task.kept:
        case ManifestLayer() as listed:
            return WholeShard(task, listed.checksums, listed.sha256)
        case Journal() as journal:
            # The plan keeps by a journal only what agrees with it.
            return replace(whole_by_journal(task, journal), checksums_seen=True)
        case None:
            raise ValueError(f"{task.plan.file} is kept, but nothing vouches for it")


def verify_bytes(whole: WholeShard, *, full: bool) -> int:
    """How much a comparison will read of the shard."""
    if full:
        return whole.task.plan.file_bytes
    shard = whole.task.shard
    rows = sample_rows(shard.header.rows_in_file, sample_seed(shard.layer, shard.rank))
    return len(rows) * shard.row_bytes


def result_of(whole: WholeShard) -> LayerResult:
    """What the job's last event says of the shard."""
    return LayerResult(
        layer=whole.task.shard.layer,
        file=whole.task.plan.file,
        file_bytes=whole.task.plan.file_bytes,
        sha256=whole.sha256,
        action=_ACTIONS[whole.task.plan.action],
        checksums="pass" if whole.checksums_seen else "unknown",
        against_source=whole.verified,
        compared_rows=whole.compared_rows,
    )


def manifest_layer(whole: WholeShard, before: ManifestLayer | None) -> ManifestLayer:
    """What the manifest will say of the shard.

    before: what the standing manifest says of the same bytes; a stronger comparison of an
        earlier call is not forgotten.
    """
    if before is not None and _STRENGTH.index(before.verified) >= _STRENGTH.index(whole.verified):
        return before
    shard, table = whole.task.shard, whole.task.part.table
    ranges = tuple(RowSpan(*each) for each in shard.ranges)
    sampled = whole.verified == "sample"
    return ManifestLayer(
        layer=shard.layer,
        row_start=ranges[0].start if ranges else 0,
        row_end=ranges[-1].end if ranges else 0,
        ranges=ranges,
        total_rows=shard.total_rows,
        row_bytes=shard.row_bytes,
        bounds_sha256=bounds_sha256(shard.bounds),
        packed_file=whole.task.plan.file,
        bytes=whole.task.plan.file_bytes,
        allocated_bytes=whole.stored.path.stat().st_blocks * 512,
        sha256=whole.sha256,
        checksum_span_bytes=whole.stored.chunks.chunk_bytes,
        checksums=whole.checksums,
        verified=whole.verified,
        sampled_rows=whole.compared_rows if sampled else 0,
        sample_seed=sample_seed(shard.layer, shard.rank),
        source_shard=table.file.name,
        source_bytes=table.file.size_bytes,
        source_header_sha256=table.header_sha256,
        source_weight_offset=table.weight_offset,
        source_scale_offset=table.scale_offset,
    )
