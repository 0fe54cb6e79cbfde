"""A launch on a terminal: the ranks' table fits the screen and says what each rank does."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from sparkserve.model.event import Event
from sparkserve.report.launch_live import LiveLaunch
from sparkserve.report.launch_plain import PlainLaunch
from sparkserve.report.launch_state import LaunchState
from sparkserve.report.launch_view import JsonEvents, observer_for
from sparkserve.report.rank_rows import rank_lines
from sparkserve.report.text import cells
from tests import golden
from tests.report import launch_events
from tests.report.screens import Screen

GOLDEN = Path(__file__).parent / "golden"


def after(events: list[Event]) -> LaunchState:
    state = LaunchState()
    for event in events:
        state.take(event)
    return state


def rows(events: list[Event], *, width: int, height: int = 40) -> list[str]:
    now = launch_events.START + timedelta(seconds=50)
    return [row.plain for row in rank_lines(after(events), now, width=width, height=height)]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", ["begun", "failed"])
def test_table_of_ranks(name: str, width: int) -> None:
    lines = rows(getattr(launch_events, name)().events, width=width)
    assert all(cells(line) <= width for line in lines)
    golden.check(GOLDEN / f"live_{name}_{width}.txt", "".join(f"{line}\n" for line in lines))


def test_last_lines_give_way_on_a_low_screen() -> None:
    events = launch_events.begun().events
    assert len(rows(events, width=80, height=5)) == 5
    assert len(rows(events, width=80, height=4)) == 3


def test_no_rank_yet_no_table() -> None:
    assert rows(launch_events.begun().events[:5], width=80) == []


@pytest.mark.parametrize(
    ("screen", "view"),
    [
        (Screen(), PlainLaunch),
        (Screen(mode="json"), JsonEvents),
        (Screen(mode="json", terminal=True), JsonEvents),
        (Screen(terminal=True, moving=False), PlainLaunch),
        (Screen(terminal=True, mode="quiet"), PlainLaunch),
        (Screen(terminal=True), LiveLaunch),
    ],
)
def test_view_suits_the_console(screen: Screen, view: type) -> None:
    assert isinstance(observer_for(screen.console), view)


def test_what_stays_on_the_terminal_is_what_a_pipe_gets() -> None:
    screen = Screen(terminal=True, color=False, width=100)
    with LiveLaunch(screen.console) as view:
        for event in launch_events.served().events:
            view.event(event)
    for line in ("[1/7] connect ... done (0.2 s)", "answer: The capital of France is Paris."):
        assert line in screen.err
    assert "WARN    spark2: the clock is 3.1 s behind" in screen.err
    assert screen.out == ""


def test_terminal_without_colour_gets_none() -> None:
    screen = Screen(terminal=True, color=False, width=100)
    with LiveLaunch(screen.console) as view:
        for event in launch_events.failed().events:
            view.event(event)
    assert "\x1b[3" not in screen.err, "an escape sequence that sets a colour"
    assert "\x1b[1;31m" not in screen.err


def test_terminal_that_was_closed_does_not_end_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal=True, width=100)

    def closed(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with LiveLaunch(screen.console) as view:
        monkeypatch.setattr(screen.stderr, "write", closed)
        for event in launch_events.interrupted().events:
            view.event(event)


def test_programs_get_every_event_as_a_line() -> None:
    screen = Screen(mode="json")
    events = launch_events.failed().events
    with observer_for(screen.console) as view:
        for event in events:
            view.event(event)
    assert [Event.model_validate_json(line) for line in screen.out.splitlines()] == events
    assert all(json.loads(line)["schema_version"] == 1 for line in screen.out.splitlines())
