"""Packed shards are the checkpoint's rows, in every layout and for every number of ranks."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import xxhash

from sparkserve.engram.chunks import ShardChunks, interleave
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.manifest import read_manifest
from sparkserve.engram.ownership import Layout
from sparkserve.engram.pack_error import PackError
from sparkserve.engram.shard import ShardIdentity
from sparkserve.model.pack import PackCode, PackJob, read_event
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import Run, expected_file, job_of, leftovers, pack, shard_name

LAYOUTS: list[Layout] = ["columns", "equal", "strided"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("checkpoint")).write()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5, 8])
def test_all_ranks_together_are_the_table(
    checkpoint: Checkpoint, tmp_path: Path, layout: Layout, tp: int
) -> None:
    held = dict.fromkeys(checkpoint.layer_ids, 0)
    for rank in range(tp):
        job = job_of(checkpoint, tmp_path, tp=tp, rank=rank, layout=layout, verify="none")
        pack(job)
        for layer in checkpoint.layer_ids:
            content = (tmp_path / shard_name(layer, layout, rank, tp)).read_bytes()
            assert content == expected_file(checkpoint, layer, layout, rank, tp)
            held[layer] += (len(content) - 4096) // 264
    assert held == {layer: checkpoint.rows(layer) for layer in checkpoint.layer_ids}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("dim", [32, 64, 512])
@pytest.mark.parametrize(
    ("index", "names"),
    [
        (False, "model.engrams.{number}.embed"),
        (True, "model.layers.{layer}.engram.embed"),
        (True, "language_model.layers.{layer}.engram.embed"),
        (True, "language_model.model.layers.{layer}.engram.embed"),
    ],
)
def test_other_names_and_row_sizes_pack_too(
    tmp_path: Path, dim: int, index: bool, names: str
) -> None:
    made = Checkpoint(tmp_path / "in", dim=dim, index=index, names=names).write()
    out = tmp_path / "out"
    pack(job_of(made, out, tp=2, rank=1, verify="full"))
    for layer in made.layer_ids:
        content = (out / shard_name(layer, "columns", 1, 2)).read_bytes()
        assert content == expected_file(made, layer, "columns", 1, 2).replace(
            (264).to_bytes(8, "little"), (dim + dim // 32).to_bytes(8, "little"), 0
        )


def test_the_manifest_says_what_the_files_are(checkpoint: Checkpoint, tmp_path: Path) -> None:
    done = pack(job_of(checkpoint, tmp_path, tp=4, rank=3, revision="abc123"))
    manifest = read_manifest(tmp_path, 3, 4, "columns")
    assert manifest is not None
    text = (tmp_path / "manifest-r3of4.json").read_bytes()
    assert done.manifest_digest == hashlib.sha256(text).hexdigest()
    config = (checkpoint.folder / "config.json").read_bytes()
    index = (checkpoint.folder / "model.safetensors.index.json").read_bytes()
    assert manifest.checkpoint_config_sha256 == hashlib.sha256(config).hexdigest()
    assert manifest.checkpoint_index_sha256 == hashlib.sha256(index).hexdigest()
    assert (manifest.revision, manifest.rank, manifest.tp) == ("abc123", 3, 4)
    assert [layer.layer for layer in manifest.layers] == [1, 14]
    for layer in manifest.layers:
        content = (tmp_path / layer.packed_file).read_bytes()
        source = (checkpoint.folder / layer.source_shard).read_bytes()
        weights, scales = checkpoint.table(layer.layer)
        assert layer.sha256 == hashlib.sha256(content).hexdigest()
        assert layer.checksums == (xxhash.xxh3_64_hexdigest(content),)
        assert source[layer.source_weight_offset :].startswith(weights)
        assert source[layer.source_scale_offset :].startswith(scales)
        assert layer.allocated_bytes >= len(content) == layer.bytes
        assert layer.verified == "sample"
        assert layer.sampled_rows == (1037 if layer.row_end - layer.row_start > 512 else 1034)
        assert layer.sample_seed == layer.layer * 1000 + 3


def test_a_second_call_keeps_what_is_valid(checkpoint: Checkpoint, tmp_path: Path) -> None:
    job = job_of(checkpoint, tmp_path, tp=2, rank=0)
    pack(job)
    before = {path: path.stat() for path in tmp_path.iterdir() if path.suffix != ".lock"}
    run = Run()
    done = pack(job, run)
    assert [layer.action for layer in done.layers] == ["kept", "kept"]
    assert done.written_bytes == 0
    assert all(path.stat().st_ino == was.st_ino for path, was in before.items())
    assert all(path.stat().st_mtime_ns == was.st_mtime_ns for path, was in before.items())


def test_layers_can_be_packed_one_by_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    pack(job_of(checkpoint, tmp_path / "a", layers=[14]))
    pack(job_of(checkpoint, tmp_path / "a", layers=[1]))
    pack(job_of(checkpoint, tmp_path / "b"))
    name = "manifest-r0of1.json"
    assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


def test_a_stronger_comparison_is_remembered(checkpoint: Checkpoint, tmp_path: Path) -> None:
    verified = []
    for level in ("none", "full", "sample"):
        pack(job_of(checkpoint, tmp_path, verify=level))
        manifest = read_manifest(tmp_path, 0, 1, "columns")
        assert manifest is not None
        verified.append({layer.verified for layer in manifest.layers})
    assert verified == [{"none"}, {"full"}, {"full"}]


def test_progress_reaches_its_total_in_every_phase(checkpoint: Checkpoint, tmp_path: Path) -> None:
    run = Run()
    pack(job_of(checkpoint, tmp_path, verify="full"), run)
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    assert run.of("planned")[0].needed_bytes >= sizes
    for phase in ("pack", "verify"):
        steps = [event for event in run.of("progress") if event.phase == phase]
        done = [event.done_bytes for event in steps]
        assert done == sorted(done)
        assert (done[-1], steps[-1].total_bytes) == (sizes, sizes)
    for event in run.events:
        assert read_event(event.model_dump_json()) == event


def test_a_stop_leaves_what_the_next_call_needs(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "in", vocab_size=1500, layer_ids=(1,)).write()
    job = job_of(checkpoint, tmp_path / "out")
    run = Run()
    real = run.reporter.step

    def stop_soon(layer: int, step_bytes: int) -> None:
        run.stop.set()
        real(layer, step_bytes)

    run.reporter.step = stop_soon  # type: ignore[method-assign]
    with pytest.raises(PackError) as caught:
        pack(job, run)
    assert caught.value.code is PackCode.INTERRUPTED
    assert caught.value.exit_code == 130
    assert not (tmp_path / "out" / "engram-l1-r0of1.bin").exists()
    again = Run()
    done = pack(job, again)
    (planned,) = again.of("planned")
    assert planned.layers[0].action == "resume"
    assert planned.layers[0].done_bytes == 1 << 20
    assert done.layers[0].action == "resumed"
    content = (tmp_path / "out" / "engram-l1-r0of1.bin").read_bytes()
    assert content == expected_file(checkpoint, 1, "columns", 0, 1)


@pytest.mark.parametrize("chunk_bytes", [4096, 8192, 69632])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_of_any_size_are_the_file_cut_up(
    checkpoint: Checkpoint, layout: Layout, chunk_bytes: int
) -> None:
    shard = shard_of(checkpoint, layout)
    chunks = ShardChunks(shard, chunk_bytes)
    expected = expected_file(checkpoint, 14, layout, 1, 3)
    table = MemoryTable(*checkpoint.table(14), checkpoint.dim)
    source, target = chunks.source_arena(1), chunks.file_arena()
    whole = b""
    # Backwards, because every chunk must be made by itself.
    for number in reversed(range(chunks.count)):
        chunk = chunks.chunk(number)
        data = chunks.fill(chunk, chunks.fetch(chunk, table, source), target)  # type: ignore[arg-type]
        whole = bytes(data) + whole
    assert whole == expected


def test_interleaving_puts_each_scale_behind_its_weights() -> None:
    weights, scales = bytes(range(64)), b"\xf0\xf1"
    rows = bytearray(66)
    interleave(memoryview(weights), memoryview(scales), memoryview(rows), 1)
    assert bytes(rows) == bytes(range(32)) + b"\xf0" + bytes(range(32, 64)) + b"\xf1"


def test_a_job_says_only_what_can_be() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        PackJob(source="a", out="b", tp=2, rank=2)
    with pytest.raises(ValueError, match="layers is empty"):
        PackJob(source="a", out="b", tp=2, rank=0, layers=())


class MemoryTable:
    """A table in memory."""

    def __init__(self, weights: bytes, scales: bytes, dim: int) -> None:
        self.weights, self.scales, self.dim = weights, scales, dim

    def read(self, start: int, end: int, _: object) -> tuple[memoryview, memoryview]:
        width = self.dim // 32
        return (
            memoryview(self.weights)[start * self.dim : end * self.dim],
            memoryview(self.scales)[start * width : end * width],
        )


def shard_of(checkpoint: Checkpoint, layout: Layout) -> ShardIdentity:
    import json

    config = json.loads((checkpoint.folder / "config.json").read_text())
    return EngramConfig.from_config(config).shard(14, layout, 1, 3)
