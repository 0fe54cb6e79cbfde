"""A conversation: the answer as it comes, then what it took."""

from __future__ import annotations

import time

from sparkserve.endpoint import ChatDelta, Usage
from sparkserve.report.console import Console
from sparkserve.report.text import Span, clean, line
from sparkserve.units import format_duration

_LEAST_STREAM_S = 0.2


class AnswerView:
    """Prints one answer piece by piece; in JSON mode the whole of it at the end.

    The answer itself is the result; what the model thought before it is progress.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Usage | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._text)

    def piece(self, delta: ChatDelta) -> None:
        """Take the next piece."""
        self._usage = delta.usage or self._usage
        self._finish_reason = delta.finish_reason or self._finish_reason
        if self._first_s is None and (delta.text or delta.reasoning):
            self._first_s = time.monotonic() - self._began_s
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
            self._console.progress(clean(delta.reasoning))
        if delta.text:
            if self._reasoning and not self._text:
                self._console.progress("\n\n")
            self._text.append(delta.text)
            if self._console.mode != "json":
                on_screen = self._console.result_is_terminal
                self._console.raw(clean(delta.text) if on_screen else delta.text)

    def end(self) -> None:
        """Finish a whole answer and say what it took."""
        took_s = time.monotonic() - self._began_s
        if self._console.mode == "json":
            self._console.document(
                {
                    "text": self.text,
                    "reasoning": "".join(self._reasoning),
                    "finish_reason": self._finish_reason,
                    "prompt_tokens": self._usage.prompt_tokens if self._usage else None,
                    "completion_tokens": self._usage.completion_tokens if self._usage else None,
                    "first_token_s": None if self._first_s is None else round(self._first_s, 3),
                    "elapsed_s": round(took_s, 3),
                }
            )
            return
        self.break_off()
        self._console.say([line(Span(f"({self._took(took_s)})", "dim"))])
        if self._finish_reason == "length":
            self._console.warn("the answer was cut short: --max-tokens allows more")

    def _took(self, took_s: float) -> str:
        """``7 tokens in 1.3 s, the first after 0.7 s, then 10.1 tok/s``."""
        tokens = self._usage.completion_tokens if self._usage else 0
        told = (
            f"{tokens} token{'s' if tokens > 1 else ''} in {format_duration(took_s)}"
            if tokens
            else format_duration(took_s)
        )
        # Pieces that come together say nothing about the speed at which they were made.
        if self._first_s is None or tokens < 2 or took_s - self._first_s < _LEAST_STREAM_S:
            return told
        speed = (tokens - 1) / (took_s - self._first_s)
        return f"{told}, the first after {format_duration(self._first_s)}, then {speed:.1f} tok/s"

    def break_off(self) -> None:
        """End the line of an answer, whole or not."""
        if self._console.mode != "json" and self.text and not self.text.endswith("\n"):
            self._console.raw("\n")
