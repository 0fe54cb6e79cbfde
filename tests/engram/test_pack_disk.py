"""On a real file system: full disks leave old shards alone, and the page cache stays empty."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkserve.engram import direct_file
from sparkserve.engram.direct_file import Arena, DirectFile, EndOfFileError
from sparkserve.engram.manifest import read_manifest
from sparkserve.engram.pack_error import PackError
from sparkserve.model.pack import PackCode, PackEvent
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import Run, expected_file, job_of, leftovers, pack

PAGE = 4096
NAMES = {1: "engram-l1-r0of1.bin", 14: "engram-l14-r0of1.bin"}
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mkfs.ext4") is None,
    reason="mounting a file system needs root and mkfs.ext4",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 48 MiB."""
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(48 << 20)
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", image, place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no loop mount here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def resident_bytes(path: Path) -> int:
    """How much of a file lies in the page cache, by mincore."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as pages:
        states = (ctypes.c_ubyte * -(-size // PAGE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (ctypes.c_void_p(address), ctypes.c_size_t(size), states)
        assert libc.mincore(*arguments) == 0, os.strerror(ctypes.get_errno())
        return sum(state & 1 for state in states) * PAGE


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def direct_io_refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a file system that knows no O_DIRECT."""
    real = os.open

    def refusing(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(direct_file.os, "open", refusing)
        yield


@needs_root
@pytest.mark.parametrize("direct", [True, False])
def test_packing_leaves_the_page_cache_empty(
    disk: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    checkpoint = Checkpoint(disk / "in", vocab_size=2000).write()
    sources = [checkpoint.folder / checkpoint.file(layer) for layer in checkpoint.layer_ids]
    for source in sources:
        evict(source)
        assert resident_bytes(source) == 0
    # The measure itself sees pages where there are some.
    sources[0].read_bytes()
    assert resident_bytes(sources[0]) > 4 << 20
    evict(sources[0])
    out = disk / "out"
    job = job_of(checkpoint, out, verify="none")
    if direct:
        pack(job)
    else:
        with direct_io_refused(monkeypatch):
            pack(job)
    for layer, name in NAMES.items():
        shard = out / name
        assert resident_bytes(shard) == 0
        assert shard.stat().st_blocks * 512 >= shard.stat().st_size > 6 << 20
        assert shard.read_bytes() == expected_file(checkpoint, layer, "columns", 0, 1)
    # Without direct I/O the kernel may read ahead of what was asked for and given back.
    assert [resident_bytes(source) for source in sources] == [0, 0] or not direct
    assert sum(resident_bytes(source) for source in sources) <= 1 << 20


@needs_root
def test_comparing_through_the_serving_reader_leaves_it_almost_empty(disk: Path) -> None:
    checkpoint = Checkpoint(disk / "in", vocab_size=2000).write()
    out = disk / "out"
    sources = [checkpoint.folder / checkpoint.file(layer) for layer in checkpoint.layer_ids]
    for source in sources:
        evict(source)
    pack(job_of(checkpoint, out, verify="full"))
    # Headers are looked at through the cache, with what the kernel reads ahead of them.
    for path in [*sources, *(out / name for name in NAMES.values())]:
        assert resident_bytes(path) <= 256 << 10


def fill(disk: Path, leave_bytes: int) -> None:
    """Take all space of a disk but about so many bytes."""
    status = os.statvfs(disk)
    take = status.f_bavail * status.f_frsize - leave_bytes
    with (disk / "filler").open("wb") as file:
        if take > 0:
            os.posix_fallocate(file.fileno(), 0, take)


@needs_root
@pytest.mark.parametrize("reserving", [True, False])
def test_a_disk_that_fills_up_leaves_the_old_shards_as_they_were(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserving: bool
) -> None:
    """At random points, with and without a file system that sets space aside."""
    old = Checkpoint(tmp_path / "old", vocab_size=900).write()
    new = Checkpoint(tmp_path / "new", vocab_size=900, seed=1, config={"x": 1}).write()
    out = disk / "out"
    pack(job_of(old, out, verify="none"))
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".lock"}
    need = sum(len(content) for name, content in before.items() if name.endswith(".bin"))
    if not reserving:
        monkeypatch.setattr(DirectFile, "reserve", lambda *_: None)
    job = job_of(new, out, verify="none", replace=True)
    source = random.Random(f"full {reserving}")
    for attempt in range(6):
        if attempt % 2 == 0:
            # Every other attempt begins anew, the rest go on where the disk was full before.
            for part in out.glob("*.part*"):
                part.unlink()
        taken = sum(part.stat().st_blocks * 512 for part in out.glob("*.part"))
        leave_bytes = int(source.random() * 0.8 * (need - taken))
        run = Run()

        def send(event: PackEvent, run: Run = run, leave_bytes: int = leave_bytes) -> None:
            run.events.append(event)
            if event.event == "planned":
                # The check found enough; now somebody else takes it.
                fill(disk, leave_bytes)

        run.reporter.send = send  # type: ignore[method-assign]
        with pytest.raises(PackError) as caught:
            pack(job, run)
        assert caught.value.code is PackCode.DISK_FULL
        assert "finished shards are untouched" in caught.value.message
        for name, content in before.items():
            assert (out / name).read_bytes() == content
        (disk / "filler").unlink()
    done = pack(job)
    assert {layer.action for layer in done.layers} == {"replaced"}
    for layer, name in NAMES.items():
        assert (out / name).read_bytes() == expected_file(new, layer, "columns", 0, 1)
    assert leftovers(out) == []
    manifest = read_manifest(out, 0, 1, "columns")
    assert manifest is not None
    assert manifest.layers[0].source_bytes == (new.folder / new.file(1)).stat().st_size


# --- files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
def test_any_bytes_of_a_file_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    content = random.Random("bytes").randbytes(3 * PAGE + 777)
    path = tmp_path / "file"
    path.write_bytes(content)
    with direct_io_refused(monkeypatch) if not direct else monkeypatch.context():
        file = DirectFile(path)
    with file:
        assert file.direct is direct
        for start in (0, 1, PAGE - 1, PAGE, 2 * PAGE + 5, 3 * PAGE + 776):
            for length in (0, 1, 264, PAGE, len(content) - start):
                length = min(length, len(content) - start)
                arena = Arena(length + 4 * PAGE)
                assert file.read(start, length, arena) == content[start : start + length]


@pytest.mark.parametrize("direct", [True, False])
def test_the_end_of_a_file_is_an_error_with_its_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (2 * PAGE + 100))
    with direct_io_refused(monkeypatch) if not direct else monkeypatch.context():
        file = DirectFile(path)
    with file, pytest.raises(EndOfFileError) as caught:
        file.read(PAGE, PAGE + 101, Arena(8 * PAGE))
    assert caught.value.offset_bytes == 2 * PAGE + 100
    assert "1 bytes are missing" in str(caught.value)


def test_an_arena_gives_aligned_memory_and_no_more_than_it_has() -> None:
    arena = Arena(3 * PAGE)
    first = arena.take(5)
    second = arena.take(PAGE, PAGE)
    second[:] = b"y" * PAGE
    assert bytes(first) == bytes(5)
    address = ctypes.addressof(ctypes.c_char.from_buffer(second))
    assert address % PAGE == 0
    with pytest.raises(MemoryError):
        arena.take(2 * PAGE)
    arena.reset()
    assert len(arena.take(3 * PAGE)) == 3 * PAGE
