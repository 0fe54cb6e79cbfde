"""Judge one rank's standing shards: against their manifest, and the source if it is there.

Without a source only the manifest's checksums speak. They show that the files are what was packed,
not that what was packed is the checkpoint; the result says which of the two was found out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkserve.engram.chunks import ShardChunks
from sparkserve.engram.journal import Digests
from sparkserve.engram.manifest import (
    found_files,
    judge_manifest,
    manifest_name,
    read_manifest,
    wanted_layer,
)
from sparkserve.engram.pack_error import PackError, disk_error
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.shard import HEADER_BYTES, ShardIdentity
from sparkserve.engram.source import Checkpoint, Folder
from sparkserve.engram.verify import (
    StoredShard,
    checksum_all,
    compare_all,
    compare_checksums,
    compare_sample,
    sample_rows,
)
from sparkserve.errors import ShardError
from sparkserve.model.engram_manifest import (
    EngramManifest,
    ManifestLayer,
    WantedLayer,
    WantedShards,
)
from sparkserve.model.pack import LayerResult, PackCode, PackDone, VerifyJob

_HINT = "sparkserve pack --replace"
_OF_ONE_SHARD = frozenset({PackCode.VERIFY, PackCode.SHORT_SHARD})
"""Faults that say nothing about the rank's other shards."""


@dataclass
class VerifyRun:
    """One job in progress; it writes nothing."""

    job: VerifyJob
    folder: Folder | None
    reporter: Reporter
    clock: Callable[[], float] = time.monotonic
    _reader: str | None = None

    @property
    def out(self) -> Path:
        """The folder of the shards."""
        return Path(self.job.out)

    def run(self) -> PackDone:
        """Do the job.

        Raises:
            PackError: a shard is not what it should be, or cannot be judged.
        """
        try:
            return self._run()
        except PackError as error:
            error.reader = self._reader
            raise

    def _run(self) -> PackDone:
        started_s = self.clock()
        manifest = self._manifest()
        packed = [each.layer for each in manifest.layers]
        if self.folder is None:
            layers = self._listed(manifest, packed)
            self._judge(manifest, self._wanted(None, tuple(_as_listed(each) for each in layers)))
            results = self._by_checksums(layers)
        else:
            with closing(self.folder):
                checkpoint = Checkpoint.open(self.folder)
                # A table that was never packed must not pass for want of a shard to judge.
                layers = self._listed(manifest, [*checkpoint.config.layer_ids, *packed])
                shards = tuple(self._shard(checkpoint, each.layer) for each in layers)
                wanted = tuple(wanted_layer(shard) for shard in shards)
                self._judge(manifest, self._wanted(checkpoint, wanted))
                results = self._by_source(checkpoint, layers, shards)
        path = self.out / manifest_name(self.job.rank, self.job.tp, self.job.layout)
        return PackDone(
            manifest=str(path),
            manifest_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
            layers=results,
            seconds=round(self.clock() - started_s, 3),
            written_bytes=0,
            reader=self._reader,
        )

    def _manifest(self) -> EngramManifest:
        job = self.job
        try:
            found = read_manifest(self.out, job.rank, job.tp, job.layout)
        except ShardError as error:
            raise PackError(PackCode.MANIFEST, error.message, hint=error.hint) from error
        if found is None:
            raise PackError(
                PackCode.MANIFEST,
                f"no {manifest_name(job.rank, job.tp, job.layout)} here: packing never ended",
                path=self.out,
                hint="sparkserve pack",
            )
        return found

    def _listed(self, manifest: EngramManifest, known: Sequence[int]) -> tuple[ManifestLayer, ...]:
        listed = {each.layer: each for each in manifest.layers}
        wanted = set(known if self.job.layers is None else self.job.layers)
        missing = sorted(wanted - listed.keys())
        if missing:
            raise PackError(
                PackCode.TABLE,
                f"layers {missing} are not packed, only {sorted(listed)}",
                path=self.out,
                hint="sparkserve pack",
            )
        return tuple(listed[number] for number in sorted(wanted))

    def _shard(self, checkpoint: Checkpoint, layer: int) -> ShardIdentity:
        if layer not in checkpoint.config.layer_ids:
            raise PackError(
                PackCode.TABLE,
                f"layer {layer} is packed, the source has tables in "
                f"{sorted(checkpoint.config.layer_ids)}",
                path=self.out,
            )
        return checkpoint.config.shard(layer, self.job.layout, self.job.rank, self.job.tp)

    def _wanted(
        self, checkpoint: Checkpoint | None, layers: tuple[WantedLayer, ...]
    ) -> WantedShards:
        job = self.job
        return WantedShards(
            rank=job.rank,
            tp=job.tp,
            layout=job.layout,
            layers=layers,
            revision=job.revision,
            config_sha256=checkpoint.config_sha256 if checkpoint else None,
            index_sha256=checkpoint.index_sha256 if checkpoint else None,
        )

    def _judge(self, manifest: EngramManifest, wanted: WantedShards) -> None:
        try:
            files = found_files(self.out, manifest)
        except OSError as error:
            raise disk_error(error, self.out, "looking at the shards") from error
        differences = judge_manifest(manifest, wanted.model_copy(update={"files": files}))
        if differences:
            raise PackError(
                differences[0].code,
                "; ".join(str(each) for each in differences),
                path=self.out,
                hint=_HINT,
            )

    def _by_checksums(self, layers: tuple[ManifestLayer, ...]) -> tuple[LayerResult, ...]:
        self.reporter.begin("verify", sum(each.bytes for each in layers))

        def judge(listed: ManifestLayer) -> LayerResult:
            path = self.out / listed.packed_file
            _compare(path, checksum_all(path, listed, self.reporter), listed)
            return _result(listed, checksums="pass", against="none", rows=0)

        return _each(layers, judge)

    def _by_source(
        self,
        checkpoint: Checkpoint,
        layers: tuple[ManifestLayer, ...],
        shards: tuple[ShardIdentity, ...],
    ) -> tuple[LayerResult, ...]:
        full = self.job.verify == "full"
        self.reporter.begin(
            "verify", sum(each.bytes + (0 if full else _sample_bytes(each)) for each in layers)
        )
        meant = {shard.layer: shard for shard in shards}

        def judge(listed: ManifestLayer) -> LayerResult:
            shard, path = meant[listed.layer], self.out / listed.packed_file
            stored = StoredShard(path, ShardChunks(shard, listed.checksum_span_bytes))
            table = checkpoint.table(shard.layer)
            with closing(table.file):
                if full:
                    found, self._reader = compare_all(
                        stored, table, checkpoint.folder, self.reporter
                    )
                    _compare(path, found, listed)
                    rows = shard.header.rows_in_file
                    return _result(listed, checksums="pass", against="full", rows=rows)
                rows, self._reader = compare_sample(stored, table, self.reporter)
                # A sample alone would pass over a wrong bit in any other row.
                _compare(path, checksum_all(path, listed, self.reporter), listed)
                return _result(listed, checksums="pass", against="sample", rows=rows)

        return _each(layers, judge)


def _each(
    layers: Sequence[ManifestLayer], judge: Callable[[ManifestLayer], LayerResult]
) -> tuple[LayerResult, ...]:
    """Judge every layer, also after one has failed.

    Raises:
        PackError: the first bad shard's; its ``layers`` say how all of them stand. At once where
            not a shard is to blame, such as a source that does not answer.
    """
    results: list[LayerResult] = []
    first: PackError | None = None
    for listed in layers:
        try:
            results.append(judge(listed))
        except PackError as error:
            if error.code not in _OF_ONE_SHARD:
                raise
            first = first or error
            failed = _result(listed, checksums="unknown", against="none", rows=0)
            results.append(failed.model_copy(update={"failure": error.message}))
    if first is not None:
        first.layers = tuple(results)
        raise first
    return tuple(results)


def _compare(path: Path, found: Digests, listed: ManifestLayer) -> None:
    span_bytes = listed.checksum_span_bytes
    compare_checksums(path, found, listed.checksums, listed.sha256, span_bytes)


def _result(
    listed: ManifestLayer,
    *,
    checksums: Literal["pass", "unknown"],
    against: Literal["none", "sample", "full"],
    rows: int,
) -> LayerResult:
    return LayerResult(
        layer=listed.layer,
        file=listed.packed_file,
        file_bytes=listed.bytes,
        sha256=listed.sha256,
        action="verified",
        checksums=checksums,
        against_source=against,
        compared_rows=rows,
    )


def _sample_bytes(listed: ManifestLayer) -> int:
    held = (listed.bytes - HEADER_BYTES) // listed.row_bytes
    return len(sample_rows(held, listed.sample_seed)) * listed.row_bytes


def _as_listed(listed: ManifestLayer) -> WantedLayer:
    """Without a source the manifest is taken at its word for what the files should be."""
    return WantedLayer(
        layer=listed.layer,
        ranges=listed.ranges,
        total_rows=listed.total_rows,
        row_bytes=listed.row_bytes,
        bounds_sha256=listed.bounds_sha256,
    )
