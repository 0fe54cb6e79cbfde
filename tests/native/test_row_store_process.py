"""The row store where the system says no: blocked io_uring, no direct I/O, forks, dead ends."""

import errno
import json
import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from sparkserve_native import RowStore, RowStoreError, StoreOptions

from tests.native.tables import ROW_BYTES, make_table

REPOSITORY = Path(__file__).resolve().parents[2]
# Opens a store on the table at argv[1] and prints what it says; the rows are checked.
REPORT = """
import json, sys
from array import array
from sparkserve_native import RowStore, RowStoreError, StoreOptions
from tests.native.tables import *
{before}
table = make_table(sys.argv[1])
ids = array("q", [*range(0, 4099, 3), 15, 16, 17, 4098])
out = bytearray(len(ids) * ROW_BYTES)
try:
    with RowStore(table.file, StoreOptions(engine={engine!r}, threads=4)) as store:
        store.lookup_into(ids, out)
        assert out == table.rows(ids)
        stats = store.stats()
        print(json.dumps([store.engine, store.engine_reason, stats.registered_buffers]))
except RowStoreError as error:
    print(json.dumps(["refused", error.strerror, error.errno]))
"""


def child(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def report(tmp_path, before, engine="auto"):
    done = child(REPORT.format(before=before, engine=engine), tmp_path / "table.bin")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def skip_without_io_uring(table):
    try:
        RowStore(table.file, StoreOptions(engine="io_uring")).close()
    except RowStoreError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
@pytest.mark.parametrize("call", ["IO_URING_SETUP", "IO_URING_ENTER"])
def test_blocked_io_uring_means_pread_with_the_reason(tmp_path, table, call, number):
    skip_without_io_uring(table)
    block = f"block_system_call({call}, {number})"
    engine, reason, _ = report(tmp_path, block)
    assert engine == "pread"
    assert reason.startswith(f"{call.lower()}: {os.strerror(number)}")
    refused, why, error = report(tmp_path, block, "io_uring")
    assert (refused, why, error) == ("refused", reason, number)


def test_the_reason_names_seccomp_where_the_call_is_forbidden(tmp_path, table):
    skip_without_io_uring(table)
    _, reason, _ = report(tmp_path, f"block_system_call(IO_URING_SETUP, {errno.EPERM})")
    assert "seccomp" in reason


def test_little_locked_memory_means_plain_buffers_and_no_failure(tmp_path, table):
    skip_without_io_uring(table)
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody whose limits count")
    # Imports first: another user may not be allowed to read this folder.
    limit = """
import os, resource
sys.argv[1] = sys.argv[1]
RowStore(make_table(sys.argv[1]).file).close()
os.chmod(os.path.dirname(sys.argv[1]), 0o777)
os.chmod(sys.argv[1], 0o666)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
os.chdir(os.path.dirname(sys.argv[1]))
sys.argv[1] = os.path.basename(sys.argv[1])
os.setuid(65534)
"""
    engine, _, registered = report(tmp_path, limit)
    assert (engine, registered) == ("io_uring", False)


def test_a_file_system_without_direct_io_is_read_through_the_page_cache(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a ramfs")
    script = """
import subprocess, sys
subprocess.run(["mount", "-t", "ramfs", "none", sys.argv[1]], check=True)
from array import array
from sparkserve_native import *
from tests.native.tables import *
table = make_table(sys.argv[1] + "/table.bin")
ids = array("q", [*range(0, 4099, 3), 15, 16, 17, 4098])
out = bytearray(len(ids) * ROW_BYTES)
for engine in ("auto", "pread"):
    with RowStore(table.file, StoreOptions(engine=engine, threads=4)) as store:
        store.lookup_into(ids, out)
        assert out == table.rows(ids)
        stats = store.stats()
        assert (stats.direct_io, stats.alignment_bytes) == (False, 1), stats
        print(stats.engine_reason)
"""
    told = with_mounts_of_its_own(script, tmp_path)
    assert told.count("the file system refuses direct I/O") == 2


def with_mounts_of_its_own(script, *arguments):
    """Output of a script whose mounts nobody else sees."""
    words = ["unshare", "--mount", sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        words, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_closed_store_holds_nothing_that_keeps_its_file_system_mounted(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a tmpfs")
    script = """
import subprocess, sys
from array import array
from sparkserve_native import *
from tests.native.tables import *
for _ in range(5):
    subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1]], check=True)
    table = make_table(sys.argv[1] + "/table.bin")
    with RowStore(table.file) as store:
        store.lookup_into(array("q", [5]), bytearray(ROW_BYTES))
    subprocess.run(["umount", sys.argv[1]], check=True)
"""
    with_mounts_of_its_own(script, tmp_path)


def test_a_tmpfs_gives_exact_rows_and_says_how_they_were_read():
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip(f"{folder} cannot be written to")
    path = folder / f"sparkserve-test-rows-{os.getpid()}"
    try:
        table = make_table(path)
        with RowStore(table.file, StoreOptions(threads=4)) as store:
            ids = array("q", range(4099))
            out = bytearray(len(ids) * ROW_BYTES)
            store.lookup_into(ids, out)
            assert out == table.rows(ids)
            stats = store.stats()
    finally:
        path.unlink()
    assert ("refuses direct I/O" in stats.engine_reason) == (not stats.direct_io)


def test_a_store_refuses_in_a_forked_child_and_goes_on_in_the_parent(tmp_path):
    script = """
import errno, os, sys, threading
from array import array
from sparkserve_native import *
from tests.native.tables import *
table = make_table(sys.argv[1])
store = RowStore(table.file, StoreOptions(threads=4))
ids, out = array("q", [5]), bytearray(ROW_BYTES)
child = os.fork()
if child == 0:
    numbers = []
    try:
        store.lookup_into(ids, out)
    except RowStoreError as error:
        numbers.append((error.errno, "after the fork" in str(error)))
    # The library refuses by itself, without the help of its Python face.
    store._process = os.getpid()
    try:
        store.lookup_into(ids, out)
    except RowStoreError as error:
        numbers.append((error.errno, "after the fork" in str(error)))
    store.close()
    with RowStore(table.file) as own:
        own.lookup_into(ids, out)
    os._exit(0 if numbers == [(errno.EOWNERDEAD, True)] * 2 and out == table.row(5) else 1)
assert os.waitpid(child, 0)[1] == 0
store.lookup_into(ids, out)
assert out == table.row(5)
store.close()
"""
    done = child(script, tmp_path / "table.bin")
    assert done.returncode == 0, done.stderr


CALLBACK = """
import ctypes, sys
from array import array
from sparkserve_native import *
from tests.native.tables import *
table = make_table(sys.argv[1])
def call(address, job):
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(job.address)
ids, out = array("q", [5]), bytearray(ROW_BYTES)
at = [ctypes.addressof(ctypes.c_char.from_buffer(b)) for b in (ids, out)]
store = RowStore(table.file)
job = store.job(at[0], 1, at[1], 0)
call(host_callback(), job)
assert out == table.row(5)
ids[0] = 6
call(host_submit_callback(), job)
call(host_wait_callback(), job)
assert out == table.row(6)
print("exact", flush=True)
"""


@pytest.mark.parametrize(
    ("failure", "number", "offset"),
    [
        ("ids[0] = 4099; call(host_callback(), job)", errno.ERANGE, None),
        (
            "ids[0] = -1; call(host_submit_callback(), job); call(host_wait_callback(), job)",
            errno.ERANGE,
            None,
        ),
        ("call(host_wait_callback(), job)", errno.EINVAL, None),
        ("store.close(); call(host_callback(), job)", errno.EINVAL, None),
        (
            # Row 9 begins at byte 777 + 9 * 264 = 3153.
            "open(sys.argv[1], 'r+b').truncate(3200); ids[0] = 9; call(host_callback(), job)",
            errno.ENODATA,
            3200,
        ),
    ],
)
def test_a_host_callback_that_fails_ends_the_process_with_one_line(
    tmp_path, failure, number, offset
):
    path = tmp_path / 'a "quoted"\nname.bin'
    done = child(CALLBACK + failure + "\nprint('went on')", path)
    assert done.returncode == 78, done.stderr
    assert done.stdout == "exact\n"
    (line,) = done.stderr.splitlines()
    prefix = "sparkserve: FATAL engram_rows "
    assert line.startswith(prefix)
    told = json.loads(line.removeprefix(prefix))
    assert (told["errno"], told["offset_bytes"]) == (number, offset)
    if number != errno.EINVAL or "wait" in failure:
        assert str(path) in told["error"]
