"""Bundles: what was saved is what is judged again, and what cannot be taken is said."""

from __future__ import annotations

import os
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sparkserve.errors import ConfigError
from sparkserve.model.diagnosis import Bundle
from sparkserve.model.reading import Reading
from sparkserve.ops import bundle

AT = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
READINGS = (
    Reading(text="MemTotal: 1 kB\n", label="a: meminfo", node="a", path="/proc/meminfo", rc=0),
    Reading(text="", label="", node="a", command="ss -ltnpH | grep '8888'", rc=1, stream="stderr"),
    Reading(text='{"x": "ü\t"}', label="w", what="profile", format="json", note='"quoted"\nline'),
)


def write(folder: Path, toml: str, **files: bytes) -> Path:
    folder.mkdir()
    (folder / "case.toml").write_text(toml)
    for name, content in files.items():
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    bundle.save(tmp_path / "b", Bundle(readings=READINGS), AT)
    read = bundle.load(tmp_path / "b")
    assert read.unread == ()
    expected = [r.model_copy(update={"label": r.label or r.source}) for r in READINGS]
    assert list(read.readings) == expected


def test_saved_folder_has_the_form_of_the_cases(tmp_path: Path) -> None:
    bundle.save(tmp_path / "b", Bundle(readings=READINGS), AT)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    case = tomllib.loads((tmp_path / "b/case.toml").read_text())
    assert case["saved_at"] == "2026-11-30T12:00:00Z"
    first, second, _ = case["input"]
    assert first == {
        "label": "a: meminfo", "file": "inputs/001-a-proc-meminfo.txt", "node": "a",
        "path": "/proc/meminfo", "rc": 0,
    }  # fmt: skip
    assert second["empty"] is True
    assert second["stream"] == "stderr"
    inside = sorted((tmp_path / "b").rglob("*"))
    modes = {path: path.stat().st_mode & 0o777 for path in [tmp_path / "b", *inside]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").write_text("x")
    with pytest.raises(ConfigError, match="exists already"):
        bundle.save(tmp_path / "b", Bundle(readings=READINGS), AT)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="exists already"):
        bundle.refuse_taken(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    bundle.save(tmp_path / "empty", Bundle(readings=READINGS), AT)
    assert len(bundle.load(tmp_path / "empty").readings) == 3


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot write"):
        bundle.save(tmp_path / "file" / "b", Bundle(readings=READINGS), AT)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_keys_that_are_no_readings_are_ignored(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "b",
        'severity = "FAIL"\n[[input]]\nfile = "t.txt"\nwhat = "w"\nrole = "quiet"\nquiet = true\n'
        'empty = false\ninstead_of = ["x"]\nfuture = {a = 1}\n',
        t=b"text",
    )
    (reading,) = bundle.load(folder).readings
    assert (reading.text, reading.what) == ("text", "w")


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('what = "w"', "names no file"),
        ('file = "gone.txt"\nwhat = "w"', "cannot read gone.txt: No such file"),
        ('file = "../secret.txt"\nwhat = "w"', "outside the folder"),
        ('file = "/etc/passwd"\nwhat = "w"', "outside the folder"),
        ('file = "link.txt"\nwhat = "w"', "outside the folder"),
        ('file = "."\nwhat = "w"', "cannot read"),
        ('file = "t.txt"', "exactly one of command, path and what"),
        ('file = "t.txt"\nwhat = "w"\npath = "/p"', "exactly one of command, path and what"),
        ('file = "t.txt"\nwhat = "w"\nrc = "many"', "rc: "),
        ('file = "t.txt"\nwhat = "w"\nstream = "both"', "stream: "),
        ('file = "zero.txt"\nwhat = "w"', "not a text: it holds zero bytes"),
        ('file = "binary.txt"\nwhat = "w"', "not UTF-8 text"),
    ],
)
def test_a_text_that_cannot_be_taken_hides_no_other(
    tmp_path: Path, table: str, reason: str
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = write(
        tmp_path / "b",
        f'[[input]]\nlabel = "bad"\nnode = "n"\n{table}\n[[input]]\nfile = "t.txt"\nwhat = "w"\n',
        t=b"text", zero=b"a\0b", binary=bytes(range(128, 256)) * 9,
    )  # fmt: skip
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    read = bundle.load(folder)
    assert [reading.text for reading in read.readings] == ["text"]
    (unread,) = read.unread
    assert reason in unread.reason
    assert (unread.label, unread.node) == ("bad", "n")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[[input", "not valid TOML"),
        ("", r"no \[\[input\]\] table"),
        ("input = 3", r"no \[\[input\]\] table"),
        ("input = [3]", "input 1 is no table"),
    ],
)
def test_a_folder_without_use_is_an_error(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bundle.load(write(tmp_path / "b", toml))


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no case\.toml there"):
        bundle.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a\r\nb\rc\n", "a\nb\nc\n"),
        (b"\xef\xbb\xbfa", "a"),
        ("a ü\n".encode("utf-16"), "a ü\n"),
        (b"\x1b[31mred\x1b[0m \x1b[2K", "red "),
        (b"x" * 500 + b"\xff cut", "x" * 500 + "\ufffd cut"),
        (b"", ""),
    ],
)
def test_texts_are_read_as_people_save_them(content: bytes, text: str) -> None:
    assert bundle.clean_text(content) == text


def test_what_waits_for_ever_or_never_ends_is_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "b", '[[input]]\nfile = "pipe"\nwhat = "w"\n')
    os.mkfifo(folder / "pipe")
    (unread,) = bundle.load(folder).unread
    assert unread.reason == "cannot read pipe: not a plain file"
    with pytest.raises(bundle.NoText, match="longer than 64 MiB"):
        bundle.read_text(Path("/dev/zero"))


def test_variables_of_a_process_are_text(tmp_path: Path) -> None:
    (tmp_path / "environ").write_bytes(b"PATH=/bin\0NCCL_DEBUG=INFO\0")
    assert bundle.read_text(tmp_path / "environ") == "PATH=/bin\0NCCL_DEBUG=INFO\0"
