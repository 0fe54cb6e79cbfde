"""Every way in which packing can fail has its own code, names its place, and harms nothing."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkserve.engram.manifest import read_manifest
from sparkserve.engram.pack_error import PackError, disk_error
from sparkserve.engram.pack_lock import lock_path, pack_lock
from sparkserve.engram.pack_plan import check_space
from sparkserve.errors import ExitCode
from sparkserve.model.pack import PackCode
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import Run, expected_file, job_of, leftovers, pack

NAME = "engram-l1-r0of1.bin"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "in", vocab_size=53)


def refused(checkpoint: Checkpoint, **fields: object) -> PackError:
    """The failure of packing into a folder that stays empty."""
    out = checkpoint.folder.parent / "out"
    with pytest.raises(PackError) as caught:
        pack(job_of(checkpoint, out, **fields))
    assert not out.exists() or not list(out.glob("engram-*"))
    assert not out.exists() or not list(out.glob("manifest-*"))
    return caught.value


WEIGHT, SCALE = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ((WEIGHT, SCALE), "no Engram table for layer 1"),
        ((SCALE,), f"{WEIGHT} is there, but {SCALE} is not"),
        ((WEIGHT,), f"{SCALE} is there, but {WEIGHT} is not"),
    ],
)
def test_a_missing_tensor(
    checkpoint: Checkpoint, index: bool, drop: tuple[str, ...], words: str
) -> None:
    checkpoint.index, checkpoint.drop = index, drop
    error = refused(checkpoint.write())
    assert error.code is PackCode.TENSOR_MISSING
    assert error.exit_code is ExitCode.CONFIG
    assert words in error.message


def test_a_tensor_that_only_the_index_knows(checkpoint: Checkpoint) -> None:
    checkpoint.drop = (WEIGHT, SCALE)
    other = "model-00002-of-00002.safetensors"
    checkpoint.weight_map = {WEIGHT: other, SCALE: other}
    error = refused(checkpoint.write())
    assert error.code is PackCode.TENSOR_MISSING


def test_weights_and_scales_in_different_files(checkpoint: Checkpoint) -> None:
    checkpoint.weight_map = {SCALE: "model-00002-of-00002.safetensors"}
    error = refused(checkpoint.write())
    assert error.code is PackCode.TENSOR_SPLIT
    assert "model-00001-of-00002.safetensors" in error.message
    assert "model-00002-of-00002.safetensors" in error.message


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/etc/passwd", "", "a\0b", "a\nb"])
def test_an_index_that_points_out_of_the_folder(checkpoint: Checkpoint, name: str) -> None:
    checkpoint.weight_map = {WEIGHT: name, SCALE: name}
    error = refused(checkpoint.write())
    assert error.code is PackCode.SOURCE_HEADER


@pytest.mark.parametrize(
    ("name", "entry", "code", "words"),
    [
        (WEIGHT, {"dtype": "BF16"}, PackCode.DTYPE, "type BF16, expected F8_E4M3"),
        (SCALE, {"dtype": "F32"}, PackCode.DTYPE, "type F32, expected F8_E8M0"),
        (WEIGHT, {"shape": [5, 256]}, PackCode.SHAPE, "shape [5, 256], expected [936, 256]"),
        (SCALE, {"shape": [936, 4]}, PackCode.SHAPE, "shape [936, 4], expected [936, 8]"),
        (WEIGHT, {"data_offsets": [0, 7]}, PackCode.SHAPE, "takes 7 bytes, expected 239616"),
        (WEIGHT, {"data_offsets": [9, 7]}, PackCode.SOURCE_HEADER, "data_offsets [9, 7]"),
        (WEIGHT, {"data_offsets": "x"}, PackCode.SOURCE_HEADER, "data_offsets x"),
        (SCALE, {"data_offsets": [10**9, 10**9 + 7488]}, PackCode.SHORT_READ, "file ends here"),
    ],
)
def test_a_tensor_that_is_not_a_table(
    checkpoint: Checkpoint, name: str, entry: dict[str, object], code: PackCode, words: str
) -> None:
    assert checkpoint.rows(1) == 936
    checkpoint.header = {name: entry}
    error = refused(checkpoint.write())
    assert error.code is code
    assert words in error.message
    assert "model-00001-of-00002.safetensors" in error.message


def test_the_names_that_torch_gives_the_types_are_fine(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.header = {WEIGHT: {"dtype": "F8_E4M3FN"}, SCALE: {"dtype": "F8_E8M0FNU"}}
    pack(job_of(checkpoint.write(), tmp_path / "out"))


def test_row_counts_that_no_primes_add_up_to(checkpoint: Checkpoint) -> None:
    checkpoint.config = {"engram_num_embeddings": [877, checkpoint.rows(14)]}
    error = refused(checkpoint.write())
    assert error.code is PackCode.PRIMES
    assert "877" in error.message


def cut(count: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, count)


def patch(offset: int, content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset : offset + len(content)] = content
        path.write_bytes(data)

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (cut(0), PackCode.SOURCE_HEADER),
        (cut(7), PackCode.SOURCE_HEADER),
        (cut(100), PackCode.SOURCE_HEADER),
        (cut(50_000), PackCode.SHORT_READ),
        (patch(0, struct.pack("<Q", 1 << 40)), PackCode.SOURCE_HEADER),
        (patch(0, struct.pack("<Q", 2**64 - 1)), PackCode.SOURCE_HEADER),
        (patch(8, b"!"), PackCode.SOURCE_HEADER),
        (patch(8, b"\xff\xfe"), PackCode.SOURCE_HEADER),
        (Path.unlink, PackCode.SOURCE_MISSING),
    ],
)
def test_a_damaged_safetensors_file(
    checkpoint: Checkpoint, change: Callable[[Path], None], code: PackCode
) -> None:
    path = checkpoint.write().folder / "model-00001-of-00002.safetensors"
    change(path)
    error = refused(checkpoint)
    assert error.code is code
    assert error.path == str(path)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("config.json", None, PackCode.SOURCE_MISSING),
        ("config.json", "{", PackCode.SOURCE_HEADER),
        ("config.json", "[]", PackCode.SOURCE_HEADER),
        ("config.json", "{}", PackCode.SOURCE_HEADER),
        ("config.json", "[" * 100_000, PackCode.SOURCE_HEADER),
        ("model.safetensors.index.json", "{", PackCode.SOURCE_HEADER),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', PackCode.SOURCE_HEADER),
        ("model.safetensors.index.json", "{}", PackCode.SOURCE_HEADER),
    ],
)
def test_a_damaged_checkpoint_folder(
    checkpoint: Checkpoint, name: str, text: str | None, code: PackCode
) -> None:
    path = checkpoint.write().folder / name
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert refused(checkpoint).code is code


def test_no_checkpoint_at_all(checkpoint: Checkpoint) -> None:
    assert refused(checkpoint).code is PackCode.SOURCE_MISSING


def test_a_layer_without_a_table(checkpoint: Checkpoint) -> None:
    error = refused(checkpoint.write(), layers=[2])
    assert error.code is PackCode.JOB
    assert "[1, 14]" in error.message


def test_a_source_that_changes_while_it_is_read(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint.write().folder / "model-00001-of-00002.safetensors"
    run = Run()
    real = run.reporter.step

    def touch(layer: int, step_bytes: int) -> None:
        os.utime(path, ns=(1, 1))
        real(layer, step_bytes)

    monkeypatch.setattr(run.reporter, "step", touch)
    out = checkpoint.folder.parent / "out"
    with pytest.raises(PackError) as caught:
        pack(job_of(checkpoint, out), run)
    assert caught.value.code is PackCode.SOURCE_CHANGED
    assert not list(out.glob("*.bin"))


def test_too_little_space_is_found_before_anything_is_written(checkpoint: Checkpoint) -> None:
    error = refused(checkpoint.write(), reserve_gib=1e9)
    assert error.code is PackCode.NO_SPACE
    assert error.exit_code is ExitCode.UNFIT
    assert "of reserve" in error.message


def test_what_is_kept_needs_no_space(checkpoint: Checkpoint, tmp_path: Path) -> None:
    job = job_of(checkpoint.write(), tmp_path / "out")
    pack(job)
    assert check_space((), job)[1] == 0
    pack(job.model_copy(update={"reserve_gib": 1e9}))


def test_a_second_packer_is_told_who_is_at_work(checkpoint: Checkpoint, tmp_path: Path) -> None:
    job = job_of(checkpoint.write(), tmp_path)
    with pack_lock(lock_path(tmp_path, 0, 1, "columns")):
        with pytest.raises(PackError) as caught:
            pack(job)
        assert caught.value.code is PackCode.LOCKED
        assert f"process {os.getpid()} on {os.uname().nodename}" in caught.value.message
        # Another rank, or another layout, is another packer's business.
        pack(job.model_copy(update={"layout": "strided"}))
        pack(job.model_copy(update={"tp": 2}))
    pack(job)


FOREIGN = {
    "another range": lambda good: good[:16] + struct.pack("<2Q", 0, 5) + good[32 : 4096 + 5 * 264],
    "too short": lambda good: good[:-1],
    "too long": lambda good: good + b"\0",
    "no shard": lambda good: b"hello",
    "empty": lambda good: b"",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused_and_replaced_only_on_request(
    checkpoint: Checkpoint, tmp_path: Path, kind: str
) -> None:
    good = expected_file(checkpoint.write(), 1, "columns", 0, 1)
    foreign = FOREIGN[kind](good)
    (tmp_path / NAME).write_bytes(foreign)
    job = job_of(checkpoint, tmp_path)
    with pytest.raises(PackError) as caught:
        pack(job)
    assert caught.value.code is PackCode.REWRITE_IN_PLACE
    assert "--replace" in (caught.value.hint or "")
    assert (tmp_path / NAME).read_bytes() == foreign
    inode = (tmp_path / NAME).stat().st_ino
    done = pack(job.model_copy(update={"replace": True}))
    assert [layer.action for layer in done.layers] == ["replaced", "packed"]
    assert (tmp_path / NAME).read_bytes() == good
    assert (tmp_path / NAME).stat().st_ino != inode, "never written in place"
    assert leftovers(tmp_path) == []


def test_a_shard_of_another_packer_is_adopted_after_a_full_comparison(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    good = expected_file(checkpoint.write(), 1, "columns", 0, 1)
    (tmp_path / NAME).write_bytes(good)
    done = pack(job_of(checkpoint, tmp_path, verify="none"))
    assert [layer.action for layer in done.layers] == ["adopted", "packed"]
    assert done.layers[0].against_source == "full"
    manifest = read_manifest(tmp_path, 0, 1, "columns")
    assert manifest is not None
    assert manifest.layers[0].verified == "full"


def test_a_shard_of_another_packer_with_one_wrong_bit_is_not(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    wrong = bytearray(expected_file(checkpoint.write(), 1, "columns", 0, 1))
    wrong[4096 + 264 * 800 + 17] ^= 4
    (tmp_path / NAME).write_bytes(wrong)
    with pytest.raises(PackError) as caught:
        pack(job_of(checkpoint, tmp_path))
    assert caught.value.code is PackCode.VERIFY
    assert caught.value.offset_bytes == 4096 + 264 * 800 + 17
    assert "row 800" in caught.value.message
    assert (tmp_path / NAME).read_bytes() == wrong
    assert read_manifest(tmp_path, 0, 1, "columns") is None


def test_a_shard_that_rotted_under_its_manifest_is_packed_anew_on_request(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    job = job_of(checkpoint.write(), tmp_path)
    pack(job)
    manifest = read_manifest(tmp_path, 0, 1, "columns")
    rotten = bytearray((tmp_path / NAME).read_bytes())
    rotten[4096 + 264 * 800 + 17] ^= 4
    (tmp_path / NAME).write_bytes(rotten)
    done = pack(job.model_copy(update={"replace": True}))
    assert [layer.action for layer in done.layers] == ["replaced", "replaced"]
    assert (tmp_path / NAME).read_bytes() == expected_file(checkpoint, 1, "columns", 0, 1)
    assert read_manifest(tmp_path, 0, 1, "columns") == manifest
    assert leftovers(tmp_path) == []


def test_shards_of_another_checkpoint_stay_until_the_new_ones_are_whole(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pack(job_of(checkpoint.write(), out))
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".lock"}
    other = Checkpoint(tmp_path / "other", vocab_size=53, seed=1, config={"torch_dtype": "x"})
    job = job_of(other.write(), out)
    with pytest.raises(PackError) as caught:
        pack(job)
    assert caught.value.code is PackCode.IDENTITY
    assert "config.json" in caught.value.message
    after = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".lock"}
    assert after == before
    done = pack(job.model_copy(update={"replace": True}))
    assert [layer.action for layer in done.layers] == ["replaced", "replaced"]
    assert (out / NAME).read_bytes() == expected_file(other, 1, "columns", 0, 1)


def test_a_part_file_of_another_checkpoint_is_not_gone_on_with(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = Run()
    run.stop.set()
    first = job_of(checkpoint.write(), out)
    real = run.reporter.check_stop
    run.reporter.check_stop = lambda: None  # type: ignore[method-assign]
    run.reporter.begin = stop_at_verify(run, real)  # type: ignore[method-assign]
    with pytest.raises(PackError):
        pack(first, run)
    assert list(out.glob("*.part"))
    other = Checkpoint(tmp_path / "other", vocab_size=53, seed=1, config={"torch_dtype": "x"})
    job = job_of(other.write(), out)
    with pytest.raises(PackError) as caught:
        pack(job)
    assert caught.value.code is PackCode.IDENTITY
    pack(job.model_copy(update={"replace": True}))
    assert (out / NAME).read_bytes() == expected_file(other, 1, "columns", 0, 1)


def stop_at_verify(run: Run, check_stop: Callable[[], None]) -> Callable[..., None]:
    begin = run.reporter.begin

    def at(phase: str, *sizes: int) -> None:
        if phase == "verify":
            run.reporter.check_stop = check_stop  # type: ignore[method-assign]
        begin(phase, *sizes)  # type: ignore[arg-type]

    return at


@pytest.mark.parametrize("text", ["", "{}", "[" * 5000, '{"schema_version": 99}'])
def test_a_manifest_that_cannot_be_read_is_not_believed(
    checkpoint: Checkpoint, tmp_path: Path, text: str
) -> None:
    job = job_of(checkpoint.write(), tmp_path)
    pack(job)
    (tmp_path / "manifest-r0of1.json").write_text(text)
    with pytest.raises(PackError) as caught:
        pack(job)
    assert caught.value.code is PackCode.MANIFEST
    pack(job.model_copy(update={"replace": True}))
    assert read_manifest(tmp_path, 0, 1, "columns") is not None


def test_a_shard_with_holes_is_not_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.vocab_size = 997
    job = job_of(checkpoint.write(), tmp_path, layers=[1])
    pack(job)
    path = tmp_path / NAME
    size = path.stat().st_size
    os.truncate(path, 4096)
    os.truncate(path, size)
    with pytest.raises(PackError) as caught:
        pack(job)
    assert caught.value.code is PackCode.SHORT_SHARD
    assert "holes" in caught.value.message


def test_a_full_disk_is_told_from_a_broken_one(tmp_path: Path) -> None:
    import errno

    full = disk_error(OSError(errno.ENOSPC, "No space left"), tmp_path / "x", "packing")
    broken = disk_error(OSError(errno.EIO, "Input/output error"), tmp_path / "x", "packing")
    assert (full.code, broken.code) == (PackCode.DISK_FULL, PackCode.IO)
    assert "finished shards are untouched" in full.message


def test_every_code_has_an_exit_code_of_the_design() -> None:
    assert {code.exit_code for code in PackCode} <= set(ExitCode)
    assert json.loads(json.dumps(PackCode.VERIFY)) == "PCK_VERIFY"


def test_another_file_behind_the_same_config_is_another_source(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.index = False
    out = tmp_path / "out"
    pack(job_of(checkpoint.write(), out))
    checkpoint.names = "model.layers.{layer}.engram.embed"
    with pytest.raises(PackError) as caught:
        pack(job_of(checkpoint.write(), out))
    assert caught.value.code is PackCode.IDENTITY
    assert "header of model.safetensors" in caught.value.message
