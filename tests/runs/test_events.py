"""The event file: whole lines, from many threads and processes, through crashes."""

import errno
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from sparkserve.errors import ConfigError
from sparkserve.model.event import Event
from sparkserve.runs import EventWriter, read_events

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def event(message):
    return Event(at=NOW, kind="log", message=message)


def messages(path):
    return [item.message for item in read_events(path).events]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.ndjson"


def test_each_event_is_on_disk_as_soon_as_it_happened(path):
    with EventWriter(path) as writer:
        writer.event(event("one"))
        assert messages(path) == ["one"]
        writer.event(event("two\nlines \u2028 ü"))
        assert messages(path) == ["one", "two\nlines \u2028 ü"]
    assert read_events(path).problems == ()
    assert path.stat().st_mode & 0o077 == 0


def test_a_missing_file_is_an_empty_history(path):
    assert read_events(path).events == ()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        read_events(path)


def test_one_write_call_per_event(path, monkeypatch):
    writer = EventWriter(path)
    calls = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append(data) or write(fd, data))
    writer.event(event("x" * 100_000))
    writer.close()
    assert len(calls) == 1


def test_threads_and_two_writers_never_mix_lines(path):
    writers = [EventWriter(path), EventWriter(path)]
    threads = [
        threading.Thread(
            target=lambda n=n: [
                writers[n % 2].event(event(f"{n}-{i}-" + "x" * (i * 37 % 5000))) for i in range(100)
            ]
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.close()
    history = read_events(path)
    assert history.problems == ()
    got = [item.message.split("-")[:2] for item in history.events]
    assert sorted(got) == sorted([str(n), str(i)] for n in range(8) for i in range(100))
    for n in range(8):
        assert [i for m, i in got if m == str(n)] == [str(i) for i in range(100)]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_last_line_cut_short_is_reported_and_the_next_writer_starts_a_new_one(path, cut):
    with EventWriter(path) as writer:
        writer.event(event("whole"))
        writer.event(event("cut"))
    path.write_bytes(path.read_bytes()[:-cut])
    history = read_events(path)
    assert [item.message for item in history.events] == ["whole"]
    assert "line 2: cut short" in history.problems[0]
    with EventWriter(path) as writer:
        writer.event(event("after"))
    history = read_events(path)
    expected = ["whole", "cut", "after"] if cut == 1 else ["whole", "after"]
    assert [item.message for item in history.events] == expected
    assert len(history.problems) == (0 if cut == 1 else 1)


def test_a_damaged_line_in_the_middle_is_reported_beside_the_good_ones(path):
    with EventWriter(path) as writer:
        writer.event(event("one"))
    with path.open("ab") as stream:
        stream.write(b'{"at": 1}\n\xff\xfe\n')
    with EventWriter(path) as writer:
        writer.event(event("two"))
    history = read_events(path)
    assert [item.message for item in history.events] == ["one", "two"]
    assert ["line 2" in history.problems[0], "line 3" in history.problems[1]] == [True, True]


def test_a_full_disk_loses_events_but_never_raises_and_is_told(path, monkeypatch):
    writer = EventWriter(path)
    write = os.write
    answers = iter(["short", "full", "good"])

    def disk(descriptor, data):
        answer = next(answers)
        if answer == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:20] if answer == "short" else data)

    monkeypatch.setattr(os, "write", disk)
    for message in ("first", "second", "third"):
        writer.event(event(message))
    monkeypatch.undo()
    writer.close()
    assert (writer.lost_events, writer.failure) == (2, "No space left for a whole line")
    assert messages(path) == ["third"]


def test_events_after_the_end_are_counted_not_written_elsewhere(path, tmp_path):
    writer = EventWriter(path)
    writer.close()
    writer.close()
    with (tmp_path / "other").open("w") as other:
        writer.event(event("late"))
        assert os.fstat(other.fileno()).st_size == 0
    assert (writer.lost_events, writer.failure) == (1, "the event log is closed")


def test_an_unwritable_folder_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*No such file"):
        EventWriter(tmp_path / "absent" / "events.ndjson")


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from sparkserve.model.event import Event
from sparkserve.runs import EventWriter
writer = EventWriter(Path(sys.argv[1]))
for number in range(50):
    writer.event(Event(at=datetime.now(UTC), kind="log", message=str(number)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_every_event_it_had_taken(path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert messages(path) == [str(number) for number in range(50)]
