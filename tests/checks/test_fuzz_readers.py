"""No text at all makes doctor raise, work for ever, or call nonsense healthy."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sparkserve.checks.diagnose import diagnose
from sparkserve.facts.registry import ASKS
from sparkserve.model.reading import Reading
from tests.casefiles import ALL

INPUTS = 10_000
PARTS = 8
LONG_CHARS = 100_000
LONGEST_S = 4.0
"""CPU time of one text at which it counts as work without end; usual are some milliseconds."""

FORMLESS = {
    "PROGRESS.LOOP": "any text may be the tail of an answer, and this one does not repeat itself",
    "CTR.STARTED": "any words may be a command line, and these came through the quoting",
    "SSH.SUDO": "the exit status says it, not the text",
    "SSH.REACHABLE": "the exit status says it, not the text",
}
"""Checks whose pass does not depend on the text's form, each with the reason."""


def kinds() -> list[Reading]:
    """One reading of every kind that cases and live nodes have."""
    found: dict[str, Reading] = {}
    for reading in (r for variant in ALL for r in variant.readings):
        found.setdefault(f"{reading.command}|{reading.path}|{reading.what}", reading)
    for ask in ASKS:
        reading = ask.reading("node1", 0, "")
        found.setdefault(f"{reading.command}|{reading.path}|{reading.what}", reading)
    return list(found.values())


KINDS = kinds()
TEXTS = [reading.text for reading in KINDS if reading.text]


def noise(rng: random.Random) -> str:
    """Text that means nothing, of some kind."""
    match rng.randrange(6):
        case 0:
            places = (range(1, 256), range(0x4E00, 0x9FFF), range(32, 127))
            return "".join(chr(rng.choice(rng.choice(places))) for _ in range(rng.randrange(400)))
        case 1:
            return " ".join(rng.choices(("lorem", "ipsum", "dolor", "sit", "amet"), k=60))
        case 2:
            return "\0" * rng.randrange(1, 50)
        case 3:
            return rng.choice(("{", "[", '{"a":', "[[", "- ")) * rng.randrange(1, 3000)
        case 4:
            return "<html><body><h1>404 Not Found</h1></body></html>\n"
        case _:
            return "\n".join("~" * rng.randrange(1, 40) for _ in range(5))


def cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


STRAY = '\0\n "-:[\xff\u0661\u2028\U0001f600'


def flip(text: str, rng: random.Random) -> str:
    letters = list(text)
    for _ in range(rng.randrange(1, 12)):
        if letters:
            letters[rng.randrange(len(letters))] = rng.choice(STRAY)
    return "".join(letters)


def splice(text: str, rng: random.Random) -> str:
    other, at = rng.choice(TEXTS), rng.randrange(len(text) + 1)
    return text[:at] + cut(other, rng) + text[at:]


def numbers(text: str, rng: random.Random) -> str:
    made = rng.choice(("9" * 40, "-1", "1e999", "0", "٣٤", "NaN", "0x7fffffffffffffff", "1" * 400,
                       "18446744073709551616", "³", "1.2.3.4.5"))  # fmt: skip
    return "".join(made if c.isdigit() and rng.random() < 0.3 else c for c in text)


def lines(text: str, rng: random.Random) -> str:
    rows = text.split("\n") * rng.randrange(1, 5)
    rng.shuffle(rows)
    return rng.choice(("\n", "\r\n", "\r", "\t", " ")).join(rows)


def other(_: str, rng: random.Random) -> str:
    return rng.choice(TEXTS)


def nothing(_: str, rng: random.Random) -> str:
    return rng.choice(("", "\n", " ", "\ufeff", noise(rng)))


MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    cut, flip, splice, numbers, lines, other, nothing,
)  # fmt: skip


@contextmanager
def no_endless_work() -> Iterator[None]:
    """Ends what needs seconds of CPU time, however loaded the machine is."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {LONGEST_S} s of CPU time for one text")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_texts_never_raise(part: int) -> None:
    rng = random.Random(part)
    for _ in range(INPUTS // PARTS):
        reading = rng.choice(KINDS)
        text = reading.text
        for mutate in rng.choices(MUTATIONS, k=rng.randrange(1, 4)):
            text = mutate(text, rng)[:20_000]
        changed = reading.model_copy(update={"text": text, "rc": rng.choice((reading.rc, 0, 1))})
        with no_endless_work():
            diagnose((changed,))


@pytest.mark.parametrize("reading", KINDS, ids=lambda reading: reading.source[:60])
def test_text_without_meaning_is_no_pass(reading: Reading) -> None:
    rng = random.Random(reading.source)
    for _ in range(12):
        nonsense = reading.model_copy(update={"text": noise(rng) or "~"})
        for finding in diagnose((nonsense,)).findings:
            assert finding.outcome != "pass" or finding.check_id in FORMLESS, finding


LONG = {
    "letters": "a", "blanks": " ", "zeros": "0", "figures": "1 ", "pairs": "a=", "brackets": "[",
    "braces": '{"a":', "keys": "a: ", "quotes": '"', "dashes": "-", "paths": "/a", "dots": "1.",
    "hex": "ab:", "lines": "\n", "tabs": "\t",
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_endless_lines_are_read_in_bounded_time(name: str) -> None:
    text = (LONG[name] * LONG_CHARS)[:LONG_CHARS]
    for reading in KINDS:
        with no_endless_work():
            diagnose((reading.model_copy(update={"text": text}),))


def test_long_texts_of_each_kind_are_read_in_bounded_time() -> None:
    for reading in KINDS:
        row = " ".join(reading.text.split("\n")) + " "
        with no_endless_work():
            diagnose((reading.model_copy(update={"text": (row * LONG_CHARS)[:LONG_CHARS]}),))
