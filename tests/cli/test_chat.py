"""Chat: one question or a conversation, the answer alone on stdout."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sparkserve.endpoint import ChatDelta, Usage
from sparkserve.errors import EndpointError
from sparkserve.ops import chat as chat_ops
from sparkserve.report.chat_view import AnswerView
from sparkserve.report.console import Console
from tests.cli.conftest import Run
from tests.report.screens import Screen

PARIS = [
    ChatDelta(reasoning="Let me "),
    ChatDelta(reasoning="think."),
    ChatDelta(text="Par"),
    ChatDelta(text="is."),
    ChatDelta(finish_reason="stop", usage=Usage(prompt_tokens=9, completion_tokens=2)),
]


class Model:
    """Stands for the endpoint: says what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[chat_ops.ChatRequest] = []
        self.answers: list[list[ChatDelta | BaseException]] = []

    def run(self, request: chat_ops.ChatRequest, _doors: object) -> Iterator[ChatDelta]:
        self.requests.append(request)
        for piece in self.answers.pop(0) if self.answers else PARIS:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    @property
    def asked(self) -> list[list[str]]:
        return [[m["content"] for m in request.messages] for request in self.requests]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    model = Model()
    monkeypatch.setattr(chat_ops, "run", model.run)
    return model


def without_times(text: str) -> str:
    return re.sub(r"[0-9.]+ (s|tok/s)", r"N \1", text)


def test_answer_goes_to_stdout_and_thoughts_to_stderr(run: Run, model: Model) -> None:
    outcome = run("chat", "Capital of France?")
    assert (outcome.code, outcome.out) == (0, "Paris.\n")
    assert without_times(outcome.err) == ("Let me think.\n\n(2 tokens in N s)\n")
    assert model.asked == [["Capital of France?"]]


def test_question_can_be_piped(run: Run, model: Model) -> None:
    run("chat", typed="from a file\n")
    run("chat", "-", typed="from a file\n")
    assert model.asked == [["from a file\n"], ["from a file\n"]]


@pytest.mark.parametrize("typed", ["", " \n"])
def test_empty_question_is_refused(run: Run, model: Model, typed: str) -> None:
    outcome = run("chat", typed=typed)
    assert (outcome.code, model.requests) == (2, [])
    assert "the question is empty" in outcome.err


def test_options_become_the_request(run: Run, model: Model) -> None:
    run(
        *("chat", "Hi", "--system", "Be brief", "--max-tokens", "7", "--temperature", "0"),
        *("--run", "2026", "--cluster", "lab"),
    )
    (request,) = model.requests
    assert request.messages == (
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
    )
    assert (request.max_tokens, request.temperature) == (7, 0.0)
    assert request.choice == chat_ops.RunChoice("2026", "lab")


def test_program_gets_one_document(run: Run, model: Model) -> None:
    outcome = run("chat", "Hi", "--json")
    data = outcome.data
    assert data["first_token_s"] <= data["elapsed_s"]
    del data["first_token_s"], data["elapsed_s"]
    assert data == {
        "text": "Paris.",
        "reasoning": "Let me think.",
        "finish_reason": "stop",
        "prompt_tokens": 9,
        "completion_tokens": 2,
    }
    assert outcome.err == ""


def test_quiet_is_the_answer_alone(run: Run, model: Model) -> None:
    outcome = run("chat", "Hi", "-q")
    assert (outcome.out, outcome.err) == ("Paris.\n", "")


def test_answer_that_was_cut_short_is_mentioned(run: Run, model: Model) -> None:
    model.answers = [[ChatDelta(text="Par"), ChatDelta(finish_reason="length")]]
    assert "warning: the answer was cut short" in run("chat", "Hi").err


def test_answer_that_breaks_off_is_an_error(run: Run, model: Model) -> None:
    model.answers = [[ChatDelta(text="Par"), EndpointError("the connection was lost")]]
    outcome = run("chat", "Hi")
    assert (outcome.code, outcome.out) == (1, "Par\n")
    assert outcome.err == "error: the connection was lost\n"


def test_interrupted_answer_ends_with_130(run: Run, model: Model) -> None:
    model.answers = [[ChatDelta(text="Par"), KeyboardInterrupt()]]
    outcome = run("chat", "Hi")
    assert (outcome.code, outcome.out) == (130, "Par\n")


class TestConversation:
    """On a terminal, without a question."""

    @pytest.fixture(autouse=True)
    def _person(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.typed: list[str | BaseException] = []

        def read_line(_console: Console, prompt: str) -> str:
            assert prompt == "you> "
            if not self.typed:
                raise EOFError
            line = self.typed.pop(0)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(Console, "read_line", read_line)
        monkeypatch.setattr("sparkserve.cli.chat.has_person", lambda: True)

    def test_earlier_words_are_remembered(self, run: Run, model: Model) -> None:
        self.typed = ["Capital of France?", "", "And of Spain?"]
        outcome = run("chat")
        assert (outcome.code, outcome.out) == (0, "Paris.\nParis.\n")
        assert model.asked[1] == ["Capital of France?", "Paris.", "And of Spain?"]

    def test_ctrl_c_ends_an_answer_and_not_the_conversation(self, run: Run, model: Model) -> None:
        self.typed = ["Tell me a story", "Shorter"]
        model.answers = [[ChatDelta(text="Once"), KeyboardInterrupt()]]
        outcome = run("chat")
        assert (outcome.code, outcome.out) == (0, "Once\nParis.\n")
        assert model.asked[1] == ["Shorter"], "what was not answered is forgotten"

    def test_ctrl_c_at_the_prompt_ends_it(self, run: Run, model: Model) -> None:
        self.typed = [KeyboardInterrupt()]
        assert run("chat").code == 130

    def test_programs_do_not_converse(self, run: Run, model: Model) -> None:
        assert "--json needs a question" in str(run("chat", "--json").data["error"]["message"])


def test_hostile_answer_cannot_move_the_cursor_of_a_terminal() -> None:
    for terminal in (True, False):
        screen = Screen(terminal=terminal, color=False)
        AnswerView(screen.console).piece(ChatDelta(text="\x1b[2Jgone"))
        assert ("\x1b" in screen.out) is not terminal, "a pipe gets what the model said"
