"""What is said of an answer's speed."""

from __future__ import annotations

import time

import pytest

from sparkserve.endpoint import ChatDelta, Usage
from sparkserve.report.chat_view import AnswerView
from tests.report.screens import Screen


def told(monkeypatch: pytest.MonkeyPatch, tokens: int, *times_s: float) -> str:
    """What is said of an answer that began at 0, whose pieces came at these times."""
    clock = iter([0.0, *times_s])
    last = [0.0]

    def now() -> float:
        last[0] = next(clock, last[0])
        return last[0]

    monkeypatch.setattr(time, "monotonic", now)
    screen = Screen()
    view = AnswerView(screen.console)
    view.piece(ChatDelta(text="word"))
    view.piece(ChatDelta(usage=Usage(prompt_tokens=1, completion_tokens=tokens)))
    view.end()
    return screen.err


def test_speed_is_that_of_the_tokens_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(monkeypatch, 21, 0.5, 2.5)
    assert text == "(21 tokens in 2.5 s, the first after 0.5 s, then 10.0 tok/s)\n"


def test_pieces_that_come_together_have_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, 21, 0.5, 0.6) == "(21 tokens in 0.6 s)\n"


def test_one_token_is_no_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, 1, 0.5, 2.5) == "(1 token in 2.5 s)\n"
