"""Pack one rank's Engram rows: the whole job, from looking at the source to the manifest.

Nothing that stands is touched before every new shard is whole, on the disk and compared. Then
the old manifest goes, the part files take their names, and the new manifest is written, so that
at every moment a manifest that can be found tells the truth about the files beside it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparkserve import __version__
from sparkserve.engram.journal import Digests, journal_path
from sparkserve.engram.manifest import (
    judge_manifest,
    manifest_name,
    read_manifest,
    write_manifest,
)
from sparkserve.engram.pack_error import PackError, disk_error
from sparkserve.engram.pack_lock import lock_path, pack_lock
from sparkserve.engram.pack_part import drop_part, listed_bytes, pack_part, sweep, trusted
from sparkserve.engram.pack_plan import LayerTask, Planner, check_space, wanted_shards
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.source import Checkpoint, Folder, TableSource
from sparkserve.engram.verify import compare_all, compare_checksums, compare_sample
from sparkserve.engram.whole import (
    WholeShard,
    kept,
    manifest_layer,
    result_of,
    verify_bytes,
    whole_by_journal,
)
from sparkserve.errors import ShardError
from sparkserve.files import sync_folder
from sparkserve.model.engram_manifest import EngramManifest
from sparkserve.model.pack import PackCode, PackDone, PackJob, PackPlanned


@dataclass
class PackRun:
    """One job in progress."""

    job: PackJob
    folder: Folder
    reporter: Reporter
    clock: Callable[[], float] = time.monotonic
    _written_bytes: int = 0
    _reader: str | None = None
    _whole: list[WholeShard] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """The folder of the shards."""
        return Path(self.job.out)

    def run(self) -> PackDone:
        """Do the job.

        Raises:
            PackError: it cannot be done, or shall stop; what was whole before still is.
        """
        started_s = self.clock()
        with ExitStack() as stack:
            stack.enter_context(closing(self.folder))
            checkpoint = Checkpoint.open(self.folder)
            layers = self._layers(checkpoint)
            tables = [stack.enter_context(_closing_file(checkpoint.table(n))) for n in layers]
            _make_folder(self.out)
            lock = lock_path(self.out, self.job.rank, self.job.tp, self.job.layout)
            stack.enter_context(pack_lock(lock))
            existing, stale = self._existing(checkpoint)
            planner = Planner(self.job, checkpoint, existing, self.reporter)
            tasks = tuple(
                planner.task(layer, table) for layer, table in zip(layers, tables, strict=True)
            )
            free, needed = check_space(tasks, self.job)
            plans = tuple(task.plan for task in tasks)
            planned = PackPlanned(layers=plans, free_bytes=free, needed_bytes=needed)
            self.reporter.send(planned)
            self._make(tasks)
            self._verify()
            manifest = self._manifest(checkpoint, existing)
            path = self._commit(manifest, existing, stale=stale)
        return self._done(path, self.clock() - started_s)

    def _layers(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        known = sorted(checkpoint.config.layer_ids)
        wanted = known if self.job.layers is None else sorted(set(self.job.layers))
        for layer in wanted:
            if layer not in known:
                raise PackError(
                    PackCode.JOB,
                    f"layer {layer} has no Engram table, the model has them in {known}",
                    path=self.folder.place,
                )
        return tuple(wanted)

    def _existing(self, checkpoint: Checkpoint) -> tuple[EngramManifest | None, bool]:
        """The manifest of this source that stands there, and whether one of another does."""
        job = self.job
        path = self.out / manifest_name(job.rank, job.tp, job.layout)
        try:
            found = read_manifest(self.out, job.rank, job.tp, job.layout)
        except ShardError as error:
            if job.replace:
                return None, True
            raise PackError(PackCode.MANIFEST, error.message, hint=error.hint) from error
        if found is None:
            return None, False
        differences = judge_manifest(found, wanted_shards(job, (), checkpoint))
        if not differences:
            return found, False
        if job.replace:
            return None, True
        first = differences[0]
        raise PackError(
            first.code,
            f"other shards stand here: {first}",
            path=path,
            hint="sparkserve pack --replace  # they stay until the new ones are whole",
        )

    def _make(self, tasks: tuple[LayerTask, ...]) -> None:
        """Have every shard whole."""
        to_pack = [task for task in tasks if task.to_pack]
        listed = sum(listed_bytes(task.part) for task in to_pack)
        prefixes: dict[int, Digests] = {}
        if listed:
            self.reporter.begin("hash", listed)
        for task in to_pack:
            if not task.part.journal.checksums:
                drop_part(task.part.target)
            prefixes[task.shard.layer] = trusted(task.part, self.reporter)
        total = sum(task.plan.file_bytes for task in tasks)
        done = total - sum(self._rest(task, prefixes[task.shard.layer]) for task in to_pack)
        if to_pack:
            self.reporter.begin("pack", total, done)
        for task in to_pack:
            prefix = prefixes[task.shard.layer]
            self._written_bytes += self._rest(task, prefix)
            journal = pack_part(task.part, prefix, self.reporter)
            self._whole.append(whole_by_journal(task, journal))
        for task in tasks:
            if task.plan.action == "keep":
                self._whole.append(kept(task))
        self._adopt([task for task in tasks if task.plan.action == "adopt"])
        self._whole.sort(key=lambda whole: whole.task.shard.layer)

    def _rest(self, task: LayerTask, prefix: Digests) -> int:
        held = len(prefix.checksums) * task.part.chunks.chunk_bytes
        return task.plan.file_bytes - min(held, task.plan.file_bytes)

    def _adopt(self, tasks: list[LayerTask]) -> None:
        if tasks:
            self.reporter.begin("verify", sum(task.plan.file_bytes for task in tasks))
        for task in tasks:
            whole = WholeShard(task, (), "", checksums_seen=True)
            digests, self._reader = compare_all(
                whole.stored, task.part.table, self.folder, self.reporter
            )
            whole.checksums, whole.sha256 = tuple(digests.checksums), digests.sha256
            whole.verified, whole.compared_rows = "full", task.shard.header.rows_in_file
            self._whole.append(whole)

    def _verify(self) -> None:
        """Compare with the source what the job says; adopted shards were compared already."""
        wanted = [each for each in self._whole if each.verified != "full"]
        if self.job.verify == "none" or not wanted:
            return
        full = self.job.verify == "full"
        self.reporter.begin("verify", sum(verify_bytes(each, full=full) for each in wanted))
        for each in wanted:
            table = each.task.part.table
            try:
                if full:
                    found, self._reader = compare_all(
                        each.stored, table, self.folder, self.reporter
                    )
                    span_bytes = each.stored.chunks.chunk_bytes
                    compare_checksums(
                        each.stored.path, found, each.checksums, each.sha256, span_bytes
                    )
                    each.compared_rows = each.task.shard.header.rows_in_file
                    each.checksums_seen = True
                else:
                    each.compared_rows, self._reader = compare_sample(
                        each.stored, table, self.reporter
                    )
            except PackError as error:
                if error.code is PackCode.VERIFY:
                    # The file is not what was written: the next call must not go on with it.
                    journal_path(each.task.part.target).unlink(missing_ok=True)
                raise
            each.verified = self.job.verify

    def _manifest(self, checkpoint: Checkpoint, existing: EngramManifest | None) -> EngramManifest:
        layers = {each.layer: each for each in (existing.layers if existing else ())}
        for each in self._whole:
            layer = each.task.shard.layer
            before = layers.get(layer) if each.task.plan.action == "keep" else None
            layers[layer] = manifest_layer(each, before)
        revision = self.job.revision or (existing.revision if existing else None)
        unchanged = existing is not None and tuple(layers.values()) == existing.layers
        return EngramManifest(
            tool_version=existing.tool_version if existing and unchanged else __version__,
            rank=self.job.rank,
            tp=self.job.tp,
            layout=self.job.layout,
            revision=revision,
            checkpoint_config_sha256=checkpoint.config_sha256,
            checkpoint_index_sha256=checkpoint.index_sha256,
            layers=tuple(layers[number] for number in sorted(layers)),
        )

    def _commit(
        self, manifest: EngramManifest, existing: EngramManifest | None, *, stale: bool
    ) -> Path:
        """Put names to the parts and write the manifest."""
        self.reporter.check_stop()
        path = self.out / manifest_name(manifest.rank, manifest.tp, manifest.layout)
        packed = [each.task.part for each in self._whole if each.task.to_pack]
        try:
            if packed and (stale or existing):
                path.unlink(missing_ok=True)
                sync_folder(self.out)
            for part in packed:
                part.part.replace(part.target)
            if packed:
                sync_folder(self.out)
            if packed or manifest != existing:
                write_manifest(self.out, manifest)
            sweep(path)
            for each in self._whole:
                drop_part(each.task.part.target)
        except OSError as error:
            raise disk_error(error, path, "putting the shards in place") from error
        return path

    def _done(self, manifest: Path, seconds: float) -> PackDone:
        return PackDone(
            manifest=str(manifest),
            manifest_digest=hashlib.sha256(manifest.read_bytes()).hexdigest(),
            layers=tuple(result_of(each) for each in self._whole),
            seconds=round(seconds, 3),
            written_bytes=self._written_bytes,
            reader=self._reader,
        )


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, out, "making the folder of the shards") from error


@contextmanager
def _closing_file(table: TableSource) -> Iterator[TableSource]:
    try:
        yield table
    finally:
        table.file.close()
