"""The cluster lock: one holder, named to the others, gone with its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkserve.errors import BusyError, ConfigError, ExitCode
from sparkserve.runs import ClusterLock
from sparkserve.runs.lock import lock_path

HOLDER = """
import sys
from pathlib import Path
from sparkserve.runs import ClusterLock
ClusterLock("four", "run-7").acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def holder():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_is_told_who_holds_it(holder):
    with pytest.raises(BusyError) as caught:
        ClusterLock("four", "mine").acquire()
    assert f"process {holder.pid} (run run-7, since 20" in caught.value.message
    assert caught.value.exit_code == ExitCode.CONFIG


def test_another_cluster_is_free(holder):
    with ClusterLock("two", "mine"):
        pass


def test_a_killed_holder_holds_nothing(holder):
    holder.kill()
    holder.wait()
    assert lock_path("four").exists()
    with ClusterLock("four", "mine") as lock:
        assert f'"pid": {os.getpid()}' in lock.path.read_text()


def test_after_release_the_next_one_gets_it():
    first = ClusterLock("four", "one")
    first.acquire()
    with pytest.raises(BusyError):
        ClusterLock("four", "two").acquire()
    first.release()
    first.release()
    with ClusterLock("four", "two"):
        pass


def test_an_unsigned_lock_still_refuses():
    with ClusterLock("four", "one") as first:
        first.path.write_text("")
        with pytest.raises(BusyError, match="another sparkserve process"):
            ClusterLock("four", "two").acquire()


def test_a_refusal_leaks_no_file(holder):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(BusyError):
            ClusterLock("four", "mine").acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "ü"])
def test_any_cluster_name_stays_in_the_folder(name):
    with ClusterLock(name, "r") as lock:
        assert lock.path.parent == lock_path("four").parent


def test_an_unwritable_state_folder_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot write"):
        ClusterLock("four", "r").acquire()
