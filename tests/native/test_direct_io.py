import ctypes
import errno
import mmap
import os
import subprocess
import threading
from pathlib import Path

import pytest
from sparkserve_native import dio_alignment
from sparkserve_native.library import library


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows ünd spaces.bin"
    path.write_bytes(bytes(64 * 1024))
    return path


def is_power_of_two(number):
    return number > 0 and number & (number - 1) == 0


def direct_read(path, offset, length):
    """Read with O_DIRECT into page-aligned memory; gives the number of bytes or the errno."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 16 * 4096) as memory, memoryview(memory) as view:
            part = view[:length]
            try:
                return os.preadv(descriptor, [part], offset)
            except OSError as error:
                return -error.errno
            finally:
                part.release()
    finally:
        os.close(descriptor)


def test_what_is_said_of_a_file_on_disk_is_what_the_kernel_accepts(file):
    found = dio_alignment(file)
    assert is_power_of_two(found.memory_bytes)
    assert is_power_of_two(found.offset_bytes)
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the temporary folder's file system does no direct I/O")
    step = found.offset_bytes
    assert direct_read(file, step, step) == step
    if found.source == "statx" and step > 1:
        assert direct_read(file, step // 2, step) == -errno.EINVAL


def test_a_path_may_be_text_or_a_path_object(file):
    assert dio_alignment(str(file)) == dio_alignment(file)


def test_a_file_system_that_does_not_say_is_taken_to_want_4096():
    folder = Path("/dev/shm")
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False
    ).stdout.strip()
    if kind != "tmpfs" or not os.access(folder, os.W_OK):
        pytest.skip(f"{folder} is {kind or 'missing'}, not a tmpfs to write to")
    path = folder / f"sparkserve-test-{os.getpid()}"
    path.write_bytes(b"x")
    try:
        found = dio_alignment(path)
    finally:
        path.unlink()
    if found.source == "statx":
        pytest.skip("this kernel's tmpfs does say")
    assert (found.memory_bytes, found.offset_bytes, found.source) == (4096, 4096, "assumed")


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "gone.bin"
    with pytest.raises(FileNotFoundError) as caught:
        dio_alignment(path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(path))
    assert str(path) in str(caught.value)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        dio_alignment(tmp_path)


def test_a_component_that_is_no_directory_is_told_apart(file):
    with pytest.raises(NotADirectoryError):
        dio_alignment(file / "below")


def test_a_null_byte_never_reaches_the_kernel(file):
    with pytest.raises(ValueError, match="null byte"):
        dio_alignment(f"{file}\0x")


@pytest.mark.parametrize("struct_bytes", [0, 12, 15])
def test_a_structure_that_is_too_small_is_refused_and_untouched(file, struct_bytes):
    words = (ctypes.c_uint32 * 4)(struct_bytes, 7, 7, 7)
    assert library().spn_get_dio_alignment(bytes(file), words) == -errno.EINVAL
    assert list(words) == [struct_bytes, 7, 7, 7]
    assert b"struct_bytes is too small" in library().spn_last_error()


def test_null_arguments_are_errors_and_no_crash():
    assert library().spn_get_dio_alignment(None, None) == -errno.EINVAL


def test_a_very_long_path_is_an_error_with_a_bounded_message():
    long = "/" + "x" * 10_000
    with pytest.raises(OSError, match="xxx") as caught:
        dio_alignment(long)
    assert caught.value.errno == errno.ENAMETOOLONG
    assert len(library().spn_last_error()) < 5000


def test_each_thread_has_its_own_last_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        dio_alignment(tmp_path / "gone")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(library().spn_last_error()))
    thread.start()
    thread.join()
    assert seen == [b""]
    assert b"gone" in library().spn_last_error()
