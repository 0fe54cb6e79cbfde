"""A launch in a pipe: numbered phases, what matters in them, and how each ended."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from sparkserve.errors import NotReadyError
from sparkserve.model.event import Event
from sparkserve.report.launch_plain import PlainLaunch
from tests import golden
from tests.report import launch_events
from tests.report.screens import Screen

GOLDEN = Path(__file__).parent / "golden"


def told(events: list[Event], error: BaseException | None = None, *, verbosity: int = 0) -> str:
    screen = Screen(verbosity=verbosity)
    try:
        with PlainLaunch(screen.console) as view:
            for event in events:
                view.event(event)
            if error is not None:
                raise error
    except (NotReadyError, KeyboardInterrupt):
        pass
    assert screen.out == "", "progress is no result"
    return screen.err


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_launch_that_serves(verbosity: int) -> None:
    text = told(launch_events.served().events, verbosity=verbosity)
    golden.check(GOLDEN / f"launch_served_v{verbosity}.txt", text)


def test_launch_whose_rank_dies() -> None:
    text = told(launch_events.failed().events, NotReadyError("rank 1 died"))
    golden.check(GOLDEN / "launch_failed.txt", text)


def test_launch_that_is_interrupted() -> None:
    text = told(launch_events.interrupted().events, KeyboardInterrupt())
    golden.check(GOLDEN / "launch_interrupted.txt", text)


def test_phase_that_fails_without_cleaning_up_is_told_as_failed() -> None:
    text = told(launch_events.begun().events[:4], NotReadyError("no"))
    assert text.endswith("[2/7] facts ... failed (0.0 s)\n")


def test_phase_that_nothing_was_heard_of_took_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    clock_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)
    with contextlib.suppress(NotReadyError), PlainLaunch(screen.console) as view:
        for event in launch_events.begun().events[:3]:
            view.event(event)
        clock_s += 21
        raise NotReadyError("no answer")
    assert screen.err.endswith("[1/7] connect ... failed (21 s)\n")


def test_phase_under_way_when_ctrl_c_came_is_told_as_interrupted() -> None:
    text = told(launch_events.begun().events[:4], KeyboardInterrupt())
    assert text.endswith("[2/7] facts ... interrupted (0.0 s)\n")


def test_nothing_happened_nothing_is_told() -> None:
    assert told([], NotReadyError("no")) == ""


def test_every_line_is_whole_when_something_comes_in_between() -> None:
    lines = told(launch_events.served().events).splitlines()
    assert all(line.startswith(("[", "      ")) for line in lines)


def test_rank_that_only_counts_on_is_told_again_at_times() -> None:
    story = launch_events.begun()
    for second in range(41, 101):
        story.add(second, "progress", f"weights {second % 48}/48", node="spark2", rank=1)
    lines = [line for line in told(story.events).splitlines() if "rank 1" in line]
    assert 4 <= len(lines) <= 8


def test_hostile_log_lines_cannot_move_the_cursor() -> None:
    story = launch_events.begun()
    story.add(41, "log", "\x1b[2J\x1b[Hgone\x07", node="spark2", rank=1)
    text = told(story.events, verbosity=2)
    assert "spark2 | gone\n" in text
    assert "\x1b" not in text
