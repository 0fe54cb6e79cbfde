"""Logs become lines with rank and time, in whatever form they were pasted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sparkserve.facts import logs
from sparkserve.facts.log_time import YEARLESS, rank_of, time_of
from sparkserve.facts.logs import EngineLog, quiet_s
from sparkserve.facts.reader import understand
from sparkserve.model.reading import Reading


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def read(**reading: str) -> EngineLog:
    (seen,) = understand([Reading(**reading)], logs.READERS).observations
    assert isinstance(seen.fact, EngineLog)
    return seen.fact


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("[2026-09-14 10:21:03 TP0] x", at(2026, 9, 14, 10, 21, 3)),
        ("2026-09-14T10:21:10Z rank0 x", at(2026, 9, 14, 10, 21, 10)),
        ("2026-09-14T12:21:10.5+02:00 x", at(2026, 9, 14, 10, 21, 10, 500_000)),
        ("2026-09-14T10:21:10.123456789Z [stderr] x", at(2026, 9, 14, 10, 21, 10, 123_456)),
        ("(EngineCore pid=1) INFO 09-14 10:21:03 [core.py:1] x", at(YEARLESS, 9, 14, 10, 21, 3)),
        ("[rank1]:[E914 10:21:25.5 Group.cpp:1] x", at(YEARLESS, 9, 14, 10, 21, 25, 500_000)),
        ("Sep 14 10:21:03 spark1 sglang[3]: x", at(YEARLESS, 9, 14, 10, 21, 3)),
        ("ValueError: x", None),
        ("[2026-13-44 10:21:03] no such day", None),
        ("[2026-09-14 10:21:03+99:99] no such zone", None),
    ],
)  # fmt: skip
def test_time_of_a_line_in_every_form(line: str, time: datetime | None) -> None:
    assert time_of(line) == time


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[2026-09-14 10:21:03 TP3] x", 3),
        ("2026-09-14T10:21:10Z rank2 x", 2),
        ("[rank1]:[W914 10:21:25.5 x", 1),
        ("[Rank 12] sendBytes failed", 12),
        ("dsv41-rank1  | x", 1),
        ("spark1:812:945 [0] NCCL INFO x", None),
        ("TP4 is what the profile says", None),
    ],
)
def test_rank_of_a_line(line: str, rank: int | None) -> None:
    assert rank_of(line) == rank


@pytest.mark.parametrize(
    "source",
    [
        {"what": "engine log"}, {"what": "rank 1 log"}, {"what": "serve log"},
        {"what": "Container log"}, {"what": "docker logs"}, {"what": "exporter log"},
        {"what": "tail of the engine log"}, {"path": "/var/log/sglang/rank0.log"},
        {"path": "/home/me/state/runs/r/engine.log"},
        {"command": "docker logs --tail 50 dsv41-rank0"},
        {"command": "sudo -n docker compose logs worker"},
        {"command": "tail -n 200 /tmp/sglang-rank0.log | grep -v health"},
        {"command": "journalctl -u sglang.service --no-pager"},
    ],
)  # fmt: skip
def test_log_is_taken_by_every_name(source: dict[str, str]) -> None:
    assert read(text="MemoryError\n", **source).lines[0].text == "MemoryError"


@pytest.mark.parametrize(
    "source",
    [
        {"what": "kernel log"}, {"command": "journalctl -k -b"}, {"path": "/var/log/kern.log"},
        {"what": "profile"}, {"command": "docker ps"}, {"command": "cat /proc/meminfo"},
    ],
)  # fmt: skip
def test_other_texts_are_left_to_others(source: dict[str, str]) -> None:
    assert understand([Reading(text="x", **source)], logs.READERS).observations == ()


def test_line_without_a_time_was_written_after_the_one_before_it() -> None:
    log = read(text="[2026-09-14 10:21:03 TP1] a\n\nboom\n", what="engine log", node="gx2")
    first, second = log.lines
    assert (first.rank, second.rank, second.place) == (1, None, "gx2")
    assert (second.at, second.since) == (None, at(2026, 9, 14, 10, 21, 3))
    assert second.number == 3


def test_rank_comes_from_the_name_of_the_log_where_lines_do_not_say_it() -> None:
    (line,) = read(text="boom", what="rank 3 log").lines
    assert (line.rank, line.place) == (3, "rank3")


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("tail, no newer line for 130 s", 130.0),
        ("newest line is 14 min old", 840.0),
        ("last line was 2 minutes ago", 120.0),
        ("nothing new since 1 hour", 3600.0),
        ("silent for 90s", 90.0),
        ("tail", None),
        ("three calls, 5 s apart", None),
    ],
)
def test_silence_is_read_from_the_note(words: str, seconds: float | None) -> None:
    assert quiet_s(words) == seconds
    assert read(text="x", what="engine log", note=words).quiet_s == seconds


def test_log_that_could_not_be_read_is_unobserved_not_empty() -> None:
    reading = Reading(text="", command="docker logs x", rc=1)
    (seen,) = understand([reading], logs.READERS).observations
    assert not isinstance(seen.fact, EngineLog)


def test_repeats_are_kept_within_a_log_and_not_between_readings() -> None:
    log = read(text="same\nsame\n", what="engine log", node="a")
    assert len(log.lines) == 2
    assert len(log.merged(log).lines) == 2
