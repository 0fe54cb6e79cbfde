"""The manifest of one rank's packed Engram rows: what the files are, and what they came from.

It is written last: shards without a manifest were never finished. It says nothing about when
or where it was written, so equal shards have equal manifests.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from sparkserve.model.base import Model
from sparkserve.model.layout import Layout
from sparkserve.model.pack import PackCode

MANIFEST_SCHEMA = 1
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""XXH3-64 as 16 hex digits."""
Count = Annotated[int, Field(ge=0)]


class RowSpan(NamedTuple):
    """Rows ``start <= row < end`` of a whole table."""

    start: int
    end: int


class ManifestLayer(Model):
    """One shard."""

    layer: Count
    row_start: Count
    """First row of the table that the file holds."""
    row_end: Count
    """One past the last row; between the two the file holds what ``ranges`` says."""
    ranges: tuple[RowSpan, ...]
    """Rows in file order: one range, or one per hash column for the strided layout (none where
    there are more ranks than columns)."""
    total_rows: Count
    """Rows of the whole table."""
    row_bytes: Count
    bounds_sha256: Sha256
    """Digest of the table's column bounds, and so of its primes."""
    packed_file: str
    """The shard's name, as layer, rank, ranks and layout make it."""
    bytes: Count
    """Exact size of the file."""
    allocated_bytes: Count
    """What the file takes on the disk; a file with holes takes less than it did."""
    sha256: Sha256
    checksum_span_bytes: Annotated[int, Field(ge=4096, le=1 << 28, multiple_of=4096)]
    """Bytes of the file that one checksum covers, header included; the last covers the rest."""
    checksums: tuple[Checksum, ...]
    verified: Literal["none", "sample", "full"]
    """What was compared with the source through the serving reader."""
    sampled_rows: Count
    """Rows of the sample; 0 where ``verified`` is not ``sample``."""
    sample_seed: Count
    source_shard: str
    """File of the checkpoint, relative to its folder."""
    source_bytes: Count
    """Size of that file."""
    source_header_sha256: Sha256
    """Digest of that file's safetensors header, length field included."""
    source_weight_offset: Count
    """Byte of the first weight of row 0 in that file."""
    source_scale_offset: Count

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        rows = 0
        before = -1
        for span in self.ranges:
            if not before <= span.start <= span.end <= self.total_rows:
                raise ValueError(
                    f"layer {self.layer}: rows {span.start} to {span.end} are out of order"
                )
            before = span.end
            rows += span.end - span.start
        edges = (self.ranges[0].start, self.ranges[-1].end) if self.ranges else (0, 0)
        if (self.row_start, self.row_end) != edges:
            raise ValueError(f"layer {self.layer}: row_start and row_end differ from the ranges")
        header_bytes = self.bytes - rows * self.row_bytes
        if header_bytes != 4096:
            raise ValueError(
                f"layer {self.layer}: {self.bytes} bytes, expected 4096 + {rows} rows of "
                f"{self.row_bytes} bytes"
            )
        spans = -(-self.bytes // self.checksum_span_bytes)
        if len(self.checksums) != spans:
            raise ValueError(
                f"layer {self.layer}: {len(self.checksums)} checksums, expected {spans}"
            )
        if "/" in self.packed_file or self.packed_file.startswith("."):
            raise ValueError(f"layer {self.layer}: {self.packed_file!r} is no file name")
        return self


class EngramManifest(Model):
    """``manifest-r<rank>of<tp>.json``, with ``.strided`` before ``.json`` for that layout."""

    schema_version: Literal[1] = 1
    status: Literal["complete"] = "complete"
    method: Literal["rows-interleaved"] = "rows-interleaved"
    """Weights and scales of a row lie side by side, the checkpoint's own bytes."""
    checksum: Literal["xxh3_64"] = "xxh3_64"
    tool_version: str
    """Version of sparkserve that packed."""
    rank: Count
    tp: Annotated[int, Field(ge=1)]
    layout: Layout
    revision: str | None
    """Revision of the checkpoint as the job named it; None = it named none."""
    checkpoint_config_sha256: Sha256
    checkpoint_index_sha256: Sha256 | None
    """None = the checkpoint is a single file without an index."""
    layers: tuple[ManifestLayer, ...]
    """Ascending by layer."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        numbers = [layer.layer for layer in self.layers]
        if not numbers or numbers != sorted(set(numbers)):
            raise ValueError(f"layers {numbers} are not ascending")
        if self.rank >= self.tp:
            raise ValueError(f"rank {self.rank} of {self.tp}")
        return self


class FoundFile(Model):
    """What ``stat`` says of a shard."""

    size_bytes: int
    allocated_bytes: int


class WantedLayer(Model):
    """What one layer's shard must hold."""

    layer: int
    ranges: tuple[RowSpan, ...]
    total_rows: int
    row_bytes: int
    bounds_sha256: str | None = None


class WantedShards(Model):
    """What a manifest is judged by; None = not asked."""

    rank: int
    tp: int
    layout: Layout
    layers: tuple[WantedLayer, ...] = ()
    """Layers that must be there; more are no harm."""
    revision: str | None = None
    """A manifest that names no revision cannot contradict this one."""
    config_sha256: str | None = None
    index_sha256: str | None = None
    files: dict[str, FoundFile] | None = None
    """File name -> what lies in the folder; None = the files are judged elsewhere."""


class Difference(NamedTuple):
    """One way in which a manifest is not what is wanted."""

    code: PackCode
    what: str
    """Such as ``ranks`` or ``layer 14: bytes on disk``."""
    expected: str
    observed: str

    def __str__(self) -> str:
        return f"{self.what}: {self.observed}, expected {self.expected}"
