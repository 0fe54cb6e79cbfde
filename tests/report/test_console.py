"""Results go to stdout, everything else to stderr, in the mode that was asked for."""

from __future__ import annotations

import errno
import io
import json
import os
import threading

import pytest

from sparkserve.report.console import Answer, Console, Settings
from sparkserve.report.text import Span, line
from tests.report.screens import Screen

ANSWER = Answer([line(Span("serving", "good"))], {"state": "serving"}, ("http://x/v1",))


def test_people_get_lines_on_stdout_and_progress_on_stderr() -> None:
    screen = Screen()
    screen.console.note("looking")
    screen.console.answer(ANSWER)
    assert screen.out == "serving\n"
    assert screen.err == "looking\n"


def test_programs_get_one_versioned_document_and_nothing_else() -> None:
    screen = Screen(mode="json")
    screen.console.note("looking")
    screen.console.warn("careful")
    screen.console.answer(ANSWER)
    assert json.loads(screen.out) == {"schema_version": 1, "state": "serving"}
    assert screen.err == ""


def test_quiet_leaves_what_a_script_needs_and_warnings() -> None:
    screen = Screen(mode="quiet")
    screen.console.note("looking")
    screen.console.warn("careful")
    screen.console.answer(ANSWER)
    assert screen.out == "http://x/v1\n"
    assert screen.err == "warning: careful\n"


def test_only_a_terminal_gets_colour() -> None:
    assert "\x1b[" in _written(Screen(terminal=True))
    assert "\x1b[" not in _written(Screen(terminal=False))
    assert "\x1b[" not in _written(Screen(terminal=True, color=False))


def test_result_stands_apart_from_progress_on_a_terminal() -> None:
    screen = Screen(terminal=True, color=False)
    screen.console.note("looking")
    screen.console.answer(ANSWER)
    assert screen.out == "\nserving\n"


def test_a_pipe_has_no_width_unless_one_is_set() -> None:
    assert Screen().console.width is None
    assert Screen(width=80).console.width == 80
    assert Screen(terminal=True).console.width == 80


def test_closed_pipe_does_not_raise_but_is_remembered() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    console = Console(Settings(mode="json"), stdout=stream, stderr=io.StringIO())
    console.record("one")
    console.record("two")
    assert console.lost_results is not None
    assert console.lost_results.errno == errno.EPIPE
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_reader_that_went_away_is_noticed_without_a_write() -> None:
    reader, writer = os.pipe()
    gone = threading.Event()
    with os.fdopen(writer, "w") as stream:
        Console(stdout=stream, stderr=io.StringIO()).watch_reader(gone.set)
        assert not gone.is_set()
        os.close(reader)
        assert gone.wait(10)


def test_text_beyond_the_encoding_is_shown_as_far_as_possible() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(stdout=stream, stderr=io.StringIO()).out([line("18 °C … ok")])
    stream.seek(0)
    assert stream.read() == "18 ?C ? ok\n"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)],
)
def test_only_yes_is_yes(typed: str, answer: bool) -> None:
    screen = Screen(terminal=True, typed=typed)
    assert screen.console.can_ask
    assert screen.console.ask("Sure?") is answer
    assert screen.err == "Sure? [y/N] "


def test_nobody_is_asked_in_a_pipe_or_for_a_program() -> None:
    assert not Screen().console.can_ask
    assert not Screen(terminal=True, mode="json").console.can_ask


def _written(screen: Screen) -> str:
    screen.console.answer(ANSWER)
    return screen.out
