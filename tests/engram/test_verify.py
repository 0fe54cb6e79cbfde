"""Shards are judged against source and manifest, and what was not compared is not called right."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from sparkserve.engram.pack_error import PackError
from sparkserve.engram.verify import sample_rows, sample_seed
from sparkserve.errors import ExitCode
from sparkserve.model.pack import PackCode, VerifyJob
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import Run, job_of, pack, verify

LAYOUTS = ["columns", "strided"]
NAMES = {"columns": "engram-l1-r1of3.bin", "strided": "engram-l1-r1of3.strided.bin"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("checkpoint"), vocab_size=1200).write()


@pytest.fixture(scope="module")
def shards(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 of 3 in two layouts; 1.5 MiB per layer, two chunks."""
    out = tmp_path_factory.mktemp("shards")
    for layout in LAYOUTS:
        job = job_of(checkpoint, out, tp=3, rank=1, layout=layout, verify="none", revision="r1")
        pack(job)
    return out


def job(out: Path, source: Path | None, **fields: object) -> VerifyJob:
    base = {"out": str(out), "tp": 3, "rank": 1, "source": str(source) if source else None}
    return VerifyJob.model_validate(base | fields)


def damaged(shards: Path, folder: Path, name: str, offset: int) -> Path:
    """A copy of the shards with one bit of one byte turned."""
    copy = folder / "shards"
    shutil.copytree(shards, copy)
    data = bytearray((copy / name).read_bytes())
    data[offset] ^= 0x10
    (copy / name).write_bytes(data)
    return copy


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("level", ["sample", "full"])
def test_good_shards_pass_and_say_what_was_compared(
    checkpoint: Checkpoint, shards: Path, layout: str, level: str
) -> None:
    done = verify(job(shards, checkpoint.folder, layout=layout, verify=level, revision="r1"))
    full = level == "full"
    for layer in done.layers:
        assert layer.action == "verified"
        assert layer.against_source == level
        assert layer.checksums == "pass"
        rows = (layer.file_bytes - 4096) // 264
        assert layer.compared_rows == (rows if full else 1037)
    assert done.reader in ("io_uring", "pread")


@pytest.mark.parametrize("level", ["sample", "full"])
def test_without_a_source_only_the_checksums_speak(shards: Path, level: str) -> None:
    done = verify(job(shards, None, verify=level))
    for layer in done.layers:
        assert (layer.checksums, layer.against_source) == ("pass", "none")
        assert layer.compared_rows == 0
    assert done.reader is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_one_wrong_bit_is_found_at_its_byte(
    checkpoint: Checkpoint, shards: Path, tmp_path: Path, layout: str, at: str
) -> None:
    name = NAMES[layout]
    size = (shards / name).stat().st_size
    offset = {"first": 4096, "middle": size // 2, "last": size - 1}[at]
    copy = damaged(shards, tmp_path, name, offset)
    with pytest.raises(PackError) as caught:
        verify(job(copy, checkpoint.folder, layout=layout, verify="full"))
    error = caught.value
    assert (error.code, error.exit_code) == (PackCode.VERIFY, ExitCode.FINDINGS)
    assert (error.path, error.offset_bytes) == (str(copy / name), offset)
    assert f"row {(offset - 4096) // 264} " in error.message


@pytest.mark.parametrize("with_source", [True, False])
def test_a_wrong_shard_keeps_no_other_from_being_judged(
    checkpoint: Checkpoint, shards: Path, tmp_path: Path, with_source: bool
) -> None:
    copy = damaged(shards, tmp_path, NAMES["columns"], 5000)
    with pytest.raises(PackError) as caught:
        verify(job(copy, checkpoint.folder if with_source else None, verify="full"))
    bad, good = caught.value.layers
    assert (bad.layer, bad.checksums, bad.against_source) == (1, "unknown", "none")
    assert bad.failure == caught.value.message
    assert (good.layer, good.checksums, good.failure) == (14, "pass", "")
    assert good.against_source == ("full" if with_source else "none")


def test_every_wrong_shard_is_named(checkpoint: Checkpoint, shards: Path, tmp_path: Path) -> None:
    copy = damaged(shards, tmp_path, NAMES["columns"], 5000)
    other = copy / NAMES["columns"].replace("l1", "l14")
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with pytest.raises(PackError) as caught:
        verify(job(copy, checkpoint.folder))
    assert NAMES["columns"] in caught.value.layers[0].failure
    assert other.name in caught.value.layers[1].failure


def test_without_a_source_a_wrong_bit_is_found_in_its_chunk(shards: Path, tmp_path: Path) -> None:
    name = NAMES["columns"]
    copy = damaged(shards, tmp_path, name, (1 << 20) + 77)
    with pytest.raises(PackError) as caught:
        verify(job(copy, None))
    assert caught.value.code is PackCode.VERIFY
    assert caught.value.offset_bytes == 1 << 20


def test_a_wrong_header_is_found(checkpoint: Checkpoint, shards: Path, tmp_path: Path) -> None:
    copy = damaged(shards, tmp_path, NAMES["columns"], 16)
    with pytest.raises(PackError) as caught:
        verify(job(copy, checkpoint.folder))
    assert caught.value.code is PackCode.SHORT_SHARD
    with pytest.raises(PackError) as caught:
        verify(job(copy, None))
    assert (caught.value.code, caught.value.offset_bytes) == (PackCode.VERIFY, 0)


def test_the_sample_finds_a_wrong_edge_row(
    checkpoint: Checkpoint, shards: Path, tmp_path: Path
) -> None:
    name = NAMES["columns"]
    for row in (0, 15, 31, 511, ((shards / name).stat().st_size - 4096) // 264 - 1):
        folder = tmp_path / str(row)
        copy = damaged(shards, folder, name, 4096 + row * 264 + 100)
        with pytest.raises(PackError) as caught:
            verify(job(copy, checkpoint.folder, verify="sample"))
        assert caught.value.offset_bytes == 4096 + row * 264


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"rank": 0}, PackCode.MANIFEST),
        ({"tp": 4}, PackCode.MANIFEST),
        ({"layout": "equal"}, PackCode.LAYOUT_FLAG),
        ({"revision": "r2"}, PackCode.WORLD_OR_REVISION),
        ({"layers": [2]}, PackCode.TABLE),
    ],
)
@pytest.mark.parametrize("with_source", [True, False])
def test_shards_of_another_purpose_are_named_so(
    checkpoint: Checkpoint,
    shards: Path,
    fields: dict[str, object],
    code: PackCode,
    with_source: bool,
) -> None:
    source = checkpoint.folder if with_source else None
    with pytest.raises(PackError) as caught:
        verify(job(shards, source, **fields))
    assert caught.value.code is code
    assert caught.value.exit_code is ExitCode.FINDINGS


def test_a_manifest_under_the_name_of_another_rank_is_found(shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    (copy / "manifest-r1of3.json").rename(copy / "manifest-r2of3.json")
    with pytest.raises(PackError) as caught:
        verify(job(copy, None, rank=2))
    assert caught.value.code is PackCode.WORLD_OR_REVISION


def test_shards_of_another_checkpoint_are_named_so(
    checkpoint: Checkpoint, shards: Path, tmp_path: Path
) -> None:
    other = Checkpoint(tmp_path, vocab_size=1200, config={"torch_dtype": "other"}).write()
    with pytest.raises(PackError) as caught:
        verify(job(shards, other.folder))
    assert caught.value.code is PackCode.IDENTITY


def test_a_missing_shard_is_found(shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    (copy / NAMES["columns"]).unlink()
    with pytest.raises(PackError) as caught:
        verify(job(copy, None))
    assert caught.value.code is PackCode.SHORT_SHARD
    assert "missing" in caught.value.message
    verify(job(copy, None, layers=[14]))


def test_a_table_that_was_never_packed_does_not_pass(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    pack(job_of(checkpoint, tmp_path, tp=3, rank=1, layers=[1], verify="none"))
    with pytest.raises(PackError, match=r"layers \[14\] are not packed, only \[1\]") as caught:
        verify(job(tmp_path, checkpoint.folder))
    assert caught.value.code is PackCode.TABLE
    (only,) = verify(job(tmp_path, checkpoint.folder, layers=[1])).layers
    assert only.layer == 1


def test_a_part_that_differs_from_the_source_never_becomes_a_shard(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """A disk that loses a bit between writing and reading back."""
    run = Run()
    begin = run.reporter.begin

    def damage(phase: str, *sizes: int) -> None:
        if phase == "verify":
            part = tmp_path / "engram-l1-r0of1.bin.part"
            data = bytearray(part.read_bytes())
            data[4096 + 15 * 264] ^= 1
            part.write_bytes(data)
        begin(phase, *sizes)  # type: ignore[arg-type]

    run.reporter.begin = damage  # type: ignore[method-assign]
    job = job_of(checkpoint, tmp_path)
    with pytest.raises(PackError) as caught:
        pack(job, run)
    assert caught.value.code is PackCode.VERIFY
    assert not list(tmp_path.glob("*.bin"))
    again = Run()
    pack(job, again)
    assert [layer.action for layer in again.of("planned")[0].layers] == ["pack", "resume"]


# --- the sample -----------------------------------------------------------------------------


def test_the_sample_of_a_real_shard_is_the_same_everywhere() -> None:
    # TP4, layer 14, rank 3, equal split: 96,004,171 rows; edges of spec section 5.3.
    rows = 96_004_171
    sample = sample_rows(rows, sample_seed(14, 3))
    assert sample_seed(14, 3) == 14003
    assert len(sample) == 1037
    assert sample[:13] == (0, 1, 14, 15, 16, 30, 31, 32, 510, 511, 512, rows - 2, rows - 1)
    source = random.Random(14003)
    assert sample[13:] == tuple(int(source.random() * rows) for _ in range(1024))
    # Golden, so that another Python version that drew differently would be noticed.
    assert sample[13:18] == GOLDEN_DRAWS


GOLDEN_DRAWS = (41031104, 12111159, 5766026, 83774520, 64600639)


@pytest.mark.parametrize("rows", [0, 1, 2, 13, 16, 500, 513])
def test_samples_of_small_shards_stay_inside(rows: int) -> None:
    sample = sample_rows(rows, 1)
    assert all(0 <= row < rows for row in sample)
    assert (len(sample) >= 1024) == (rows > 0)
    if rows:
        assert {0, rows - 1} <= set(sample)
