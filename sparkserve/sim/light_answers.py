"""What the light engine says: the same words for the same question, cut like tokens.

Must not know HTTP or ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Literal, NamedTuple

from sparkserve.sim.light_options import Options

GARBAGE = "!" * 64
_TOKEN = re.compile(r"\s*(?:[A-Za-z]+|\d|[^\sA-Za-z\d])|\s+")
_SUM = re.compile(r"(\d+)\s*(?:\+|plus)\s*(\d+)")
_CAPITALS = {
    "france": "Paris", "germany": "Berlin", "italy": "Rome", "spain": "Madrid", "japan": "Tokyo",
    "austria": "Vienna", "portugal": "Lisbon", "poland": "Warsaw",
}  # fmt: skip
_FILLER = (
    " Each part follows from the one before, so it helps to go step by step and to keep the"
    " whole picture in mind while the details fall into place."
)


class Scripted(NamedTuple):
    """A question's mark and the answer to it."""

    contains: str
    """Text that the last user message holds, ignoring case."""
    answer: str


class Generation(NamedTuple):
    """One generated text."""

    tokens: tuple[str, ...]
    finish_reason: Literal["stop", "length"]

    @property
    def text(self) -> str:
        """All tokens joined."""
        return "".join(self.tokens)


class Wish(NamedTuple):
    """What a request asks for."""

    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    """Generate exactly ``max_tokens``, as benchmarks want."""


def tokens_of(text: str) -> list[str]:
    """Cut a text into pieces that join to it again: words, digits, signs, with leading space."""
    return _TOKEN.findall(text)


def read_answers(path: Path) -> tuple[Scripted, ...]:
    """Read a file of scripted answers.

    Raises:
        ValueError: it is not a JSON list of objects with ``contains`` and ``answer``.
    """
    rows = json.loads(path.read_text())
    try:
        return tuple(Scripted(str(row["contains"]), str(row["answer"])) for row in rows)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected a list of objects with contains and answer") from error


class Answerer:
    """Finds the answer to a prompt and cuts it to the request's limits."""

    def __init__(self, options: Options) -> None:
        self._scripted = read_answers(options.answers) if options.answers else ()
        self._fixed: str | None = None
        if options.has("garbage-answer"):
            self._fixed = GARBAGE
        if options.has("empty-answer"):
            self._fixed = ""

    def generate(self, wish: Wish) -> Generation:
        """The answer, ended by a stop text, by ``max_tokens``, or by itself."""
        text = self.answer(wish.prompt)
        cuts = [place for mark in wish.stop if (place := text.find(mark)) >= 0]
        if cuts and not wish.ignore_eos:
            text = text[: min(cuts)]
        tokens = tokens_of(text)
        if wish.ignore_eos:
            more = islice(cycle(tokens_of(_FILLER)), max(0, wish.max_tokens - len(tokens)))
            return Generation((*tokens, *more)[: wish.max_tokens], "length")
        if len(tokens) > wish.max_tokens:
            return Generation(tuple(tokens[: wish.max_tokens]), "length")
        return Generation(tuple(tokens), "stop")

    def answer(self, prompt: str) -> str:
        """The whole answer to a prompt."""
        if self._fixed is not None:
            return self._fixed
        low = prompt.lower()
        for row in self._scripted:
            if row.contains.lower() in low:
                return row.answer
        for country, capital in _CAPITALS.items():
            if "capital" in low and country in low:
                return f"The capital of {country.capitalize()} is {capital}."
        if found := _SUM.search(low):
            return str(int(found[1]) + int(found[2]))
        words = re.findall(r"[A-Za-z]{2,}", prompt)
        topic = " ".join(words[:8]) or "that"
        return f"You asked about {topic}, and here is a short and plain answer.{_FILLER}"


def last_user_text(messages: Sequence[object]) -> str:
    """Text of the last user message of a chat; content parts of type text are joined."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return content_text(message.get("content"))
    return ""


def content_text(content: object) -> str:
    """Text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    return ""
