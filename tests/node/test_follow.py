"""What a follower tells is complete, in order, and the same when told again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkserve.node import follow
from sparkserve.node.follow import Follower, LogTail, engram_reads
from tests.node.harness import SLEEPER, Rank, Run


def followed(rank: Rank) -> list[dict[str, Any]]:
    """Everything a follower process says until the rank has ended."""
    output = subprocess.run(
        [sys.executable, "-m", "sparkserve.node", "follow", "--run-dir", str(rank.run_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in output.stdout.splitlines()]


def test_log_lines_states_and_counters_of_a_whole_run_are_told(run: Run) -> None:
    (rank,) = run.start(["print('one'); print('two')"])
    rank.wait_state("failed")
    told = followed(rank)
    assert [m["value"] for m in told if m["kind"] == "log"] == ["one", "two"]
    states = [m["value"] for m in told if m["kind"] == "state"]
    assert states[-1]["state"] == "failed"
    assert any(m["kind"] == "progress" for m in told)


def test_second_follower_is_told_the_same_log(run: Run) -> None:
    (rank,) = run.start(["print('one'); print('two')"])
    rank.wait_state("failed")
    logs = [[m["value"] for m in followed(rank) if m["kind"] == "log"] for _ in range(2)]
    assert logs[0] == logs[1] == ["one", "two"]


def test_guard_that_died_without_a_word_is_told_as_failed(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    rank.wait_log("engine up")
    rank.signal_guard(signal.SIGKILL)
    assert rank.process is not None
    rank.process.wait()
    states = [m["value"] for m in followed(rank) if m["kind"] == "state"]
    assert (states[-1]["state"], states[-1]["reason"]) == ("failed", "the guard died")


def test_reports_are_told_when_they_change(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    told: list[tuple[str, Any]] = []
    follower = Follower(rank.run_dir, lambda kind, value: told.append((kind, value)))
    report = rank.run_dir / "reports" / "77.json"
    for role in ("child", "child", "scheduler"):
        report.write_text(json.dumps({"role": role}))
        follower.step()
    assert [value for kind, value in told if kind == "report"] == [
        {"role": "child"},
        {"role": "scheduler"},
    ]


def test_end_is_told_after_all_of_a_huge_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_MAX_READ_BYTES", 100)
    (rank,) = run.start(["for n in range(500): print('line', n)"])
    rank.wait_state("failed")
    told: list[tuple[str, Any]] = []
    assert Follower(rank.run_dir, lambda kind, value: told.append((kind, value))).step()
    assert [value for kind, value in told if kind == "log"] == [f"line {n}" for n in range(500)]
    assert [kind for kind, _ in told if kind in ("log", "state")][-1] == "state"


def test_follower_of_what_is_new_passes_over_the_past(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    rank.wait_log("engine up")
    told: list[tuple[str, Any]] = []
    follower = Follower(rank.run_dir, lambda kind, value: told.append((kind, value)), new_only=True)
    follower.step()
    with (rank.run_dir / "engine.log").open("a") as log:
        log.write("later\n")
    follower.step()
    assert [value for kind, value in told if kind == "log"] == ["later"]
    assert [value["state"] for kind, value in told if kind == "state"] == ["running"]


def test_report_that_is_no_json_ends_no_follower(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    told: list[tuple[str, Any]] = []
    follower = Follower(rank.run_dir, lambda kind, value: told.append((kind, value)))
    for text in ("", '{"half', '{"role": "child"}'):
        (rank.run_dir / "reports" / "77.json").write_text(text)
        follower.step()
    assert [value for kind, value in told if kind == "report"] == [{"role": "child"}]


def test_engram_reads_are_summed_over_processes_layer_by_layer(tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    stats.mkdir()
    assert engram_reads(tmp_path) is None
    for pid, rows in ((1, (97, 3)), (2, (10, 0))):
        layers = [{"layer": n, "rows_read": count, "lookups": 1} for n, count in enumerate(rows)]
        (stats / f"engram-{pid}.json").write_text(json.dumps({"layers": layers}))
    assert engram_reads(tmp_path) == {0: 107, 1: 3}
    (stats / "engram-3.json").write_text('{"another": "form"}')
    (stats / "engram-4.json").write_text('{"half a')
    assert engram_reads(tmp_path) == {0: 107, 1: 3}


class TestLogTail:
    def test_holds_a_line_back_until_it_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"first\nsec")
        tail = LogTail(path)
        assert tail.lines() == ["first"]
        with path.open("ab") as file:
            file.write(b"ond\n")
        assert tail.lines() == ["second"]

    def test_gives_the_rest_at_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"no newline")
        assert LogTail(path).lines(final=True) == ["no newline"]

    def test_keeps_the_last_state_of_a_progress_bar(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"10%\r50%\r100%\r\n")
        assert LogTail(path).lines() == ["100%"]

    def test_survives_bytes_that_are_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"\xff\xfe ok\n")
        assert LogTail(path).lines()[0].endswith(" ok")

    def test_reads_a_huge_log_in_pieces_and_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "_MAX_READ_BYTES", 1000)
        path = tmp_path / "log"
        path.write_text("".join(f"line {n}\n" for n in range(1000)) + "rest")
        tail = LogTail(path)
        pieces = [tail.lines(final=True)]
        while tail.behind:
            pieces.append(tail.lines(final=True))
        assert max(sum(len(line) + 1 for line in piece) for piece in pieces) <= 1010
        assert [line for piece in pieces for line in piece] == [
            *(f"line {n}" for n in range(1000)), "rest",
        ]  # fmt: skip

    def test_goes_on_with_a_log_that_was_emptied(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"a long line of before\n")
        tail = LogTail(path)
        tail.lines()
        path.write_bytes(b"new\n")
        assert tail.lines() == ["new"]

    def test_cuts_a_line_without_end(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"x" * 40_000)
        assert [len(line) for line in LogTail(path).lines()] == [40_000]


def test_missing_log_is_no_line(tmp_path: Path) -> None:
    assert LogTail(tmp_path / "none").lines() == []


def test_follower_ends_quietly_when_nobody_listens(run: Run) -> None:
    (rank,) = run.start([SLEEPER])
    reader = subprocess.Popen(
        [sys.executable, "-m", "sparkserve.node", "follow", "--run-dir", str(rank.run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.wait(timeout=30) == 0
    assert reader.stderr.read() == b""
    reader.stderr.close()
    os.kill(int(rank.state["guard_pid"]), 0)
