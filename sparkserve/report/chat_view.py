"""A conversation: the answer as it comes, then what it took."""

from __future__ import annotations

import time

from sparkserve.report.console import Console
from sparkserve.report.text import Span, clean, line
from sparkserve.units import format_duration


class AnswerView:
    """Prints one answer piece by piece; in JSON mode the whole of it at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    def piece(self, text: str) -> None:
        """Take the next piece."""
        if not text:
            return
        if self._first_s is None:
            self._first_s = time.monotonic() - self._began_s
        self._pieces.append(text)
        if self._console.mode != "json":
            self._console.raw(clean(text) if self._console.result_is_terminal else text)

    def end(self, *, prompt_tokens: int | None, completion_tokens: int | None) -> None:
        """Finish the answer and say what it took."""
        took_s = time.monotonic() - self._began_s
        if self._console.mode == "json":
            self._console.document(
                {
                    "text": self.text,
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": completion_tokens,
                    "first_token_s": None if self._first_s is None else round(self._first_s, 3),
                    "elapsed_s": round(took_s, 3),
                }
            )
            return
        self.break_off()
        told = [format_duration(took_s)]
        if completion_tokens:
            told.insert(0, f"{completion_tokens} tokens")
            told.append(f"{completion_tokens / took_s:.1f} tok/s")
        self._console.say([line(Span(f"({', '.join(told)})", "dim"))])

    def break_off(self) -> None:
        """End the line of an answer, whole or not."""
        if self._console.mode != "json" and self.text and not self.text.endswith("\n"):
            self._console.raw("\n")
