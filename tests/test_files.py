"""Atomic writes: the old content or the new one, whatever happens in between."""

import os
import signal
import subprocess
import sys

import pytest

from sparkserve.errors import ConfigError
from sparkserve.files import PART_MARK, replace_file, save_file

# Every place where the writer can be interrupted: before and after each of these calls.
STEPS = ("open", "fchmod", "write", "fsync", "close")


def leftovers(folder):
    return [path.name for path in folder.iterdir() if PART_MARK in path.name]


def test_content_and_mode_arrive_whatever_the_umask(tmp_path):
    old = os.umask(0o077)
    try:
        replace_file(tmp_path / "deep" / "er" / "file", b"\x00\xffnew", mode=0o640)
    finally:
        os.umask(old)
    written = tmp_path / "deep" / "er" / "file"
    assert written.read_bytes() == b"\x00\xffnew"
    assert written.stat().st_mode & 0o7777 == 0o640
    assert leftovers(written.parent) == []


def test_a_secret_is_never_readable_by_others_while_it_is_written(tmp_path, monkeypatch):
    seen = []
    write = os.write

    def spy(descriptor, data):
        seen.append(os.fstat(descriptor).st_mode & 0o077)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", spy)
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert seen == [0]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_at_any_step_leaves_the_old_file_and_no_part(
    tmp_path, monkeypatch, step, when
):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    real = getattr(os, step)
    fired = []

    def interrupted(*args, **kwargs):
        if fired:
            return real(*args, **kwargs)
        fired.append(step)
        if when == "before":
            if step == "close":
                real(*args, **kwargs)
            raise KeyboardInterrupt
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new")
    monkeypatch.undo()
    assert fired == [step]
    assert path.read_bytes() == b"old"
    if (step, when) != ("open", "after"):
        assert leftovers(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from sparkserve.files import replace_file
step, number = sys.argv[2], int(sys.argv[3])
owner = Path if step == "replace" else os
real = getattr(owner, step)
count = 0
def killed(*args, **kwargs):
    global count
    count += 1
    if count == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(owner, step, killed)
replace_file(Path(sys.argv[1]), b"new")
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("step", "number", "expected"),
    [("write", 1, b"old"), ("fsync", 1, b"old"), ("replace", 1, b"old"), ("fsync", 2, b"new")],
)
def test_a_kill_at_any_step_leaves_a_whole_file(tmp_path, step, number, expected):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), step, str(number)], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == expected


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    replace_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_full_disk_is_a_sentence_that_names_the_file(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match=r"cannot write .*/file: No space left on device"):
        save_file(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_refused_and_nothing_is_left(tmp_path):
    (tmp_path / "file" / "inner").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot write"):
        save_file(tmp_path / "file", b"new")
    assert leftovers(tmp_path) == []
