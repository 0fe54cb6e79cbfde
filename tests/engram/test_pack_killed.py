"""A packer that is killed at any moment leaves nothing false, and the next one ends its work."""

from __future__ import annotations

import errno
import hashlib
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkserve.engram.journal import journal_path, part_path
from sparkserve.engram.manifest import read_manifest
from sparkserve.engram.pack_error import PackError
from sparkserve.model.pack import PackCode, PackJob
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import Run, expected_file, job_of, leftovers, pack

KILLED_PACKER = Path(__file__).with_name("killed_packer.py")
POINTS = 20
NAMES = {1: "engram-l1-r0of2.bin", 14: "engram-l14-r0of2.bin"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two shards of 4 to 5 MiB, so that each has several chunks."""
    return Checkpoint(tmp_path_factory.mktemp("checkpoint"), vocab_size=2900).write()


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint) -> dict[int, bytes]:
    return {layer: expected_file(checkpoint, layer, "columns", 0, 2) for layer in NAMES}


@pytest.fixture(scope="module")
def whole(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """Manifest of a run that nobody killed, and how often it changed the disk."""
    folder = tmp_path_factory.mktemp("whole")
    job = job_file(folder, job_of(checkpoint, folder / "out", tp=2, verify="none"))
    done = child(job, -1)
    assert done.returncode == 0, done.stderr
    manifest = (folder / "out" / "manifest-r0of2.json").read_text()
    return manifest, int(done.stderr.split()[-1])


def job_file(folder: Path, job: PackJob) -> Path:
    path = folder / "job.json"
    path.write_text(job.model_dump_json())
    return path


def child(job: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(KILLED_PACKER), str(job), str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("point", range(POINTS))
def test_after_kill_9_the_next_call_ends_with_the_same_bytes(
    checkpoint: Checkpoint,
    expected: dict[int, bytes],
    whole: tuple[str, int],
    tmp_path: Path,
    point: int,
) -> None:
    manifest, changes = whole
    # One point in each twentieth of the run: every phase is hit, the last renames too.
    source = random.Random(f"kill {point}")
    kill_at = min(int((point + source.random()) * changes / POINTS), changes - 1)
    out = tmp_path / "out"
    job = job_of(checkpoint, out, tp=2, verify="none")
    # Notes are left out while one is under way, so this run may end after fewer changes.
    while (killed := child(job_file(tmp_path, job), kill_at)).returncode == 0:
        shutil.rmtree(out)
        kill_at -= 1
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check_nothing_false(out, expected)
    run = Run()
    done = pack(job, run)
    for layer, name in NAMES.items():
        assert (out / name).read_bytes() == expected[layer]
    assert (out / "manifest-r0of2.json").read_text() == manifest
    assert leftovers(out) == []
    (planned,) = run.of("planned")
    total = sum(len(content) for content in expected.values())
    listed = sum(layer.done_bytes for layer in planned.layers)
    assert done.written_bytes == total - listed, "what was noted is not written again"


def test_two_kills_in_a_row_are_no_worse_than_one(
    checkpoint: Checkpoint, expected: dict[int, bytes], whole: tuple[str, int], tmp_path: Path
) -> None:
    manifest, changes = whole
    out = tmp_path / "out"
    job = job_file(tmp_path, job_of(checkpoint, out, tp=2, verify="none"))
    for kill_at in (changes // 3, changes // 4, changes // 5):
        assert child(job, kill_at).returncode == -signal.SIGKILL
        check_nothing_false(out, expected)
    assert child(job, -1).returncode == 0
    assert (out / "manifest-r0of2.json").read_text() == manifest
    assert {n: (out / name).read_bytes() for n, name in NAMES.items()} == expected


def check_nothing_false(out: Path, expected: dict[int, bytes]) -> None:
    """Whatever bears a shard's or manifest's name is whole and true."""
    for layer, name in NAMES.items():
        if (out / name).exists():
            assert (out / name).read_bytes() == expected[layer]
    manifest = read_manifest(out, 0, 2, "columns")
    if manifest is not None:
        assert all((out / name).exists() for name in NAMES.values())


@pytest.fixture(scope="module")
def replacing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint, int]:
    """Two checkpoints, and how often the disk is changed while one takes the other's place."""
    folder = tmp_path_factory.mktemp("replacing")
    old = Checkpoint(folder / "old").write()
    new = Checkpoint(folder / "new", seed=1, config={"x": 1}).write()
    pack(job_of(old, folder / "out", tp=2, verify="none"))
    job = job_of(new, folder / "out", tp=2, verify="none", replace=True)
    return old, new, int(child(job_file(folder, job), -1).stderr.split()[-1])


@pytest.mark.parametrize("before_end", [1, 4, 7, 9, 11, 13])
def test_a_kill_while_shards_are_replaced_leaves_no_manifest_that_lies(
    replacing: tuple[Checkpoint, Checkpoint, int], tmp_path: Path, before_end: int
) -> None:
    old, new, changes = replacing
    out = tmp_path / "out"
    pack(job_of(old, out, tp=2, verify="none"))
    job = job_of(new, out, tp=2, verify="none", replace=True)
    assert child(job_file(tmp_path, job), changes - before_end).returncode == -signal.SIGKILL
    manifest = read_manifest(out, 0, 2, "columns")
    for layer in manifest.layers if manifest else ():
        content = (out / layer.packed_file).read_bytes()
        assert layer.sha256 == hashlib.sha256(content).hexdigest()
    pack(job)
    for layer_id, name in NAMES.items():
        assert (out / name).read_bytes() == expected_file(new, layer_id, "columns", 0, 2)
    assert leftovers(out) == []


@pytest.fixture
def interrupted(checkpoint: Checkpoint, whole: tuple[str, int], tmp_path: Path) -> Path:
    """A folder whose first shard has some chunks noted."""
    out = tmp_path / "out"
    job = job_file(tmp_path, job_of(checkpoint, out, tp=2, verify="none"))
    assert child(job, whole[1] // 4).returncode == -signal.SIGKILL
    assert journal_path(out / NAMES[1]).exists()
    return out


def test_a_damaged_prefix_is_packed_anew(
    checkpoint: Checkpoint, expected: dict[int, bytes], interrupted: Path
) -> None:
    with part_path(interrupted / NAMES[1]).open("r+b") as file:
        file.seek(1 << 19)
        byte = file.read(1)
        file.seek(1 << 19)
        file.write(bytes([byte[0] ^ 1]))
    run = Run()
    done = pack(job_of(checkpoint, interrupted, tp=2, verify="none"), run)
    assert run.of("planned")[0].layers[0].done_bytes > 0
    assert done.written_bytes == sum(len(content) for content in expected.values())
    assert (interrupted / NAMES[1]).read_bytes() == expected[1]


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 2}', "null"])
def test_a_damaged_journal_is_no_journal(
    checkpoint: Checkpoint, expected: dict[int, bytes], interrupted: Path, text: str
) -> None:
    journal_path(interrupted / NAMES[1]).write_text(text)
    pack(job_of(checkpoint, interrupted, tp=2, verify="none"))
    assert (interrupted / NAMES[1]).read_bytes() == expected[1]


def test_a_part_file_that_was_cut_is_trusted_as_far_as_it_goes(
    checkpoint: Checkpoint, expected: dict[int, bytes], interrupted: Path
) -> None:
    with part_path(interrupted / NAMES[1]).open("r+b") as file:
        file.truncate((1 << 20) + 5)
    pack(job_of(checkpoint, interrupted, tp=2, verify="none"))
    assert (interrupted / NAMES[1]).read_bytes() == expected[1]


def test_another_chunk_size_goes_on_with_the_old_one(
    checkpoint: Checkpoint, expected: dict[int, bytes], interrupted: Path
) -> None:
    run = Run()
    pack(job_of(checkpoint, interrupted, tp=2, verify="none", chunk_mib=2), run)
    assert run.of("planned")[0].layers[0].action == "resume"
    assert (interrupted / NAMES[1]).read_bytes() == expected[1]
    manifest = read_manifest(interrupted, 0, 2, "columns")
    assert manifest is not None
    assert [layer.checksum_span_bytes for layer in manifest.layers] == [1 << 20, 2 << 20]


@pytest.fixture
def unsigned(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, PackJob]:
    """Shards in place whose call ended before it wrote their manifest."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    job = job_of(checkpoint, out, tp=2, verify="none")
    with monkeypatch.context() as patch:
        patch.setattr("sparkserve.engram.pack.write_manifest", full)
        with pytest.raises(PackError) as caught:
            pack(job)
    assert caught.value.code is PackCode.DISK_FULL
    assert read_manifest(out, 0, 2, "columns") is None
    return out, job


def test_shards_without_a_manifest_are_kept_where_they_agree_with_their_journals(
    unsigned: tuple[Path, PackJob], whole: tuple[str, int]
) -> None:
    out, job = unsigned
    done = pack(job)
    assert [(layer.action, layer.checksums) for layer in done.layers] == [("kept", "pass")] * 2
    assert (out / "manifest-r0of2.json").read_text() == whole[0]
    assert leftovers(out) == []


def test_a_shard_that_does_not_agree_with_its_journal_gets_no_manifest(
    unsigned: tuple[Path, PackJob], expected: dict[int, bytes]
) -> None:
    out, job = unsigned
    wrong = bytearray(expected[14])
    wrong[4096 + 264 * 9000] ^= 1
    (out / NAMES[14]).write_bytes(wrong)
    with pytest.raises(PackError) as caught:
        pack(job)
    assert (caught.value.code, caught.value.offset_bytes) == (PackCode.VERIFY, 4096 + 264 * 9000)
    assert read_manifest(out, 0, 2, "columns") is None
    run = Run()
    done = pack(job.model_copy(update={"replace": True}), run)
    assert [layer.action for layer in done.layers] == ["kept", "replaced"]
    assert run.of("planned")[0].layers[1].done_bytes == 0, "there is no part file"
    assert {n: (out / name).read_bytes() for n, name in NAMES.items()} == expected
    assert leftovers(out) == []
