"""``sparkserve chat``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sparkserve.cli import interrupts
from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors
from sparkserve.cli.options import OptionGroup, RunOptions
from sparkserve.errors import ConfigError, ExitCode
from sparkserve.report.console import Console

if TYPE_CHECKING:
    from sparkserve.ops.run_choice import RunChoice

_PROMPT = "you> "
_STDIN = "-"


@dataclass(frozen=True)
class ChatOptions(OptionGroup):
    """How to ask."""

    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="System message.")
    ] = None
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, metavar="N", help="Longest answer (512).")
    ] = 512
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, metavar="T", help="0 = always the likeliest."),
    ] = None


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    examples = [
        "sparkserve chat 'What is the capital of France?'",
        "sparkserve chat < question.txt",
        "sparkserve chat --temperature 0 --json Hello | jq -r .text",
        "sparkserve chat",
    ]
    command(app, "chat", examples=examples)(chat)


def chat(
    console: Console,
    which: RunOptions,
    options: ChatOptions,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The question; - or a pipe reads it from stdin.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Talk to the model that is served.

    Without a question it becomes a conversation: Ctrl-C ends an answer, Ctrl-D the conversation.
    """
    talk = _Talk(console, which.choice(), options)
    if text is None and has_person():
        if console.mode == "json":
            raise ConfigError("--json needs a question", hint="sparkserve chat --json 'Hello'")
        _converse(console, talk)
        return
    question = sys.stdin.read() if text in (None, _STDIN) else text
    if not question or not question.strip():
        raise ConfigError("the question is empty", hint="sparkserve chat 'Hello'")
    talk.ask(question)


def has_person() -> bool:
    """Whether somebody can type."""
    return sys.stdin.isatty()


class _Talk:
    """A conversation so far."""

    def __init__(self, console: Console, choice: RunChoice, options: ChatOptions) -> None:
        self._console = console
        self._choice = choice
        self._options = options
        system = options.system
        self._messages = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str) -> None:
        """Ask, print the answer as it comes, and remember both."""
        from sparkserve.ops import chat as use_case
        from sparkserve.report.chat_view import AnswerView

        self._messages.append({"role": "user", "content": question})
        request = use_case.ChatRequest(
            messages=tuple(self._messages),
            choice=self._choice,
            max_tokens=self._options.max_tokens,
            temperature=self._options.temperature,
        )
        view = AnswerView(self._console)
        try:
            for piece in use_case.run(request, open_doors()):
                view.piece(piece)
        except BaseException:
            view.break_off()
            raise
        self._messages.append({"role": "assistant", "content": view.text})
        view.end()

    def forget_last(self) -> None:
        """Drop a question that was not answered."""
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages.pop()


def _converse(console: Console, talk: _Talk) -> None:
    """Question and answer until Ctrl-D."""
    console.note("Ctrl-C ends an answer, Ctrl-D the conversation")
    while True:
        try:
            question = console.read_line(_PROMPT)
        except EOFError:
            console.note("")
            return
        except KeyboardInterrupt as error:
            console.note("")
            raise typer.Exit(int(ExitCode.INTERRUPTED)) from error
        if not question.strip():
            continue
        try:
            talk.ask(question)
        except KeyboardInterrupt:
            interrupts.forget()
            talk.forget_last()
