"""``python -m sparkserve.node pack`` and ``verify-engram``: events, exit codes, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkserve.engram.http_source import HttpFolder
from sparkserve.engram.local_source import LocalFolder
from sparkserve.engram.pack_error import PackError
from sparkserve.engram.reporter import Reporter
from sparkserve.errors import ExitCode
from sparkserve.model.pack import PackCode, PackEvent, read_event
from sparkserve.node.pack import open_folder, read_token
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import expected_file
from tests.engram.range_server import Handler, Seen, serving


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "in", vocab_size=1500, layer_ids=(1,)).write()


def start(command: str, folder: Path, job: dict[str, object]) -> subprocess.Popen[str]:
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    line = [sys.executable, "-m", "sparkserve.node", command, "--job", str(path)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(command: str, folder: Path, job: dict[str, object]) -> tuple[int, list[PackEvent], str]:
    process = start(command, folder, job)
    out, err = process.communicate(timeout=60)
    return process.returncode, [read_event(line) for line in out.splitlines()], err


def test_pack_then_verify(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job: dict[str, object] = {
        "source": str(checkpoint.folder), "out": str(out), "tp": 2, "rank": 1,
        "layout": "strided", "reserve_gib": 0,
    }  # fmt: skip
    code, events, err = run("pack", tmp_path, job)
    assert (code, err) == (0, "")
    assert [event.event for event in events if event.event != "progress"] == ["planned", "done"]
    name = "engram-l1-r1of2.strided.bin"
    assert (out / name).read_bytes() == expected_file(checkpoint, 1, "strided", 1, 2)
    judged = {key: value for key, value in job.items() if key != "reserve_gib"}
    code, events, err = run("verify-engram", tmp_path, judged | {"verify": "full"})
    assert (code, err) == (0, "")
    assert events[-1].event == "done"
    assert events[-1].layers[0].against_source == "full"
    data = bytearray((out / name).read_bytes())
    data[-1] ^= 1
    (out / name).write_bytes(data)
    code, events, err = run("verify-engram", tmp_path, judged | {"verify": "full"})
    assert code == ExitCode.FINDINGS
    failed = events[-1]
    assert failed.event == "failed"
    assert (failed.code, failed.exit_code) == (PackCode.VERIFY, 1)
    assert (failed.path, failed.offset_bytes) == (str(out / name), len(data) - 1)


@pytest.mark.parametrize(
    ("job", "exit_code", "code", "words"),
    [
        ({}, 2, PackCode.JOB, "tp: Field required"),
        ({"source": "/nowhere", "tp": 1, "rank": 3}, 2, PackCode.JOB, "rank 3 of 1"),
        ({"source": "/nowhere", "tp": 1, "rank": 0}, 2, PackCode.SOURCE_MISSING, "no such folder"),
        ({"source": "s3://x", "tp": 1, "rank": 0}, 2, PackCode.JOB, "neither a folder"),
        ({"source": "/", "tp": 1, "rank": 0, "x": 1}, 2, PackCode.JOB, "x: Extra inputs"),
    ],
)
def test_what_cannot_be_done_is_said_as_an_event(
    tmp_path: Path, job: dict[str, object], exit_code: int, code: PackCode, words: str
) -> None:
    found, events, _ = run("pack", tmp_path, {"out": str(tmp_path / "out")} | job)
    (failed,) = events
    assert failed.event == "failed"
    assert (found, failed.exit_code, failed.code) == (exit_code, exit_code, code)
    assert words in failed.message


def test_what_the_machine_refuses_is_no_bug(checkpoint: Checkpoint, tmp_path: Path) -> None:
    part = tmp_path / "out" / "engram-l1-r0of1.bin.part"
    part.mkdir(parents=True)
    job: dict[str, object] = {
        "source": str(checkpoint.folder), "out": str(part.parent), "tp": 1, "rank": 0,
        "reserve_gib": 0,
    }  # fmt: skip
    code, events, err = run("pack", tmp_path, job)
    failed = events[-1]
    assert failed.event == "failed"
    assert (code, failed.code, failed.path) == (ExitCode.UNFIT, PackCode.IO, str(part))
    assert err == ""


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "sparkserve.node", "pack", "--job", str(tmp_path / "none")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert read_event(done.stdout).event == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_what_the_next_call_goes_on_from(
    checkpoint: Checkpoint, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process: subprocess.Popen[str] | None = None

    def send_signal(_: Handler, seen: Seen, count: int) -> bool:
        # Config, index, size, header twice, then rows: the second chunk has begun.
        if seen.path.endswith(".safetensors") and count == 8 and process is not None:
            process.send_signal(number)
        return False

    with serving(checkpoint.folder.parent) as server:
        server.troubles.append(send_signal)
        job: dict[str, object] = {
            "source": f"{server.url}/in", "out": str(out), "tp": 1, "rank": 0,
            "reserve_gib": 0, "chunk_mib": 1, "verify": "none",
        }  # fmt: skip
        process = start("pack", tmp_path, job)
        output, err = process.communicate(timeout=60)
        failed = read_event(output.splitlines()[-1])
        assert failed.event == "failed"
        assert (process.returncode, failed.exit_code) == (130, 130)
        assert failed.code is PackCode.INTERRUPTED
        assert err == ""
        assert not list(out.glob("*.bin"))
        server.troubles.clear()
        code, events, _ = run("pack", tmp_path, job)
    assert (code, events[-1].event) == (0, "done")
    content = (out / "engram-l1-r0of1.bin").read_bytes()
    assert content == expected_file(checkpoint, 1, "columns", 0, 1)


def reporter() -> Reporter:
    return Reporter(lambda _: None)


def test_the_source_says_where_it_is(checkpoint: Checkpoint) -> None:
    local = open_folder(str(checkpoint.folder), None, reporter())
    assert isinstance(local, LocalFolder)
    assert isinstance(open_folder("https://host/model", None, reporter()), HttpFolder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.chmod(0o640), "mode 0640, expected 0600"),
        (lambda path: path.write_text(""), "holds no token"),
        (lambda path: path.write_text("two words"), "holds no token"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "holds no token"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_token_file_must_be_one(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    path = tmp_path / "token"
    path.write_text("hf_secret\n")
    path.chmod(0o600)
    assert read_token(path) == "hf_secret"
    change(path)
    with pytest.raises(PackError, match=words) as caught:
        read_token(path)
    assert caught.value.code is PackCode.JOB
    assert "hf_secret" not in caught.value.message


def test_a_caller_that_goes_away_ends_the_job_cleanly(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process: subprocess.Popen[str] | None = None

    def hang_up(_: Handler, seen: Seen, count: int) -> bool:
        if seen.path.endswith(".safetensors") and count == 5 and process is not None:
            assert process.stdout is not None
            process.stdout.close()
        return False

    with serving(checkpoint.folder.parent) as server:
        server.troubles.append(hang_up)
        job: dict[str, object] = {
            "source": f"{server.url}/in", "out": str(out), "tp": 1, "rank": 0,
            "reserve_gib": 0, "chunk_mib": 1,
        }  # fmt: skip
        process = start("pack", tmp_path, job)
        assert process.stderr is not None
        with process.stderr:
            assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 130
    assert not list(out.glob("*.bin"))
