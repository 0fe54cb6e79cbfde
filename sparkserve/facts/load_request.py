"""A test that somebody asked for: how large its buffers are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading
from sparkserve.units import parse_bytes


class LoadRequest(Fact):
    """A bandwidth test before it runs."""

    size_bytes: int | None = None
    """Largest buffer that was asked for; None = the test's default."""


_TEST = re.compile(r"--bandwidth\b|\w+_perf\b|nccl-tests|ib_(?:write|read|send)_bw|--load\b")
_SIZE = re.compile(
    r"(?:--size|--maxbytes|--max-bytes|--bytes|(?<!\S)-e)[= ](\d+(?:\.\d+)?\s?[A-Za-z]*)"
)


def _request(reading: Reading) -> Iterator[LoadRequest]:
    if not _TEST.search(reading.text):
        raise UnusableOutput("not the command line of a test")
    sizes = [parse_bytes(word) for word in _SIZE.findall(reading.text)]
    yield LoadRequest(size_bytes=max(sizes, default=None))


READERS: tuple[Reader, ...] = (
    Reader(
        "load_request.line", (LoadRequest,), _request,
        whats=(
            r"(?:test |doctor |load |bandwidth )?(?:request|command(?: line)?|invocation)"
            r"|requested (?:test|command)|argv of the test",
        ),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = ()
