"""Reader of a ``docker run`` command line: what a container would be given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from sparkserve.facts.container_kinds import Container, Containers
from sparkserve.facts.environment import Environment, environment_of
from sparkserve.facts.reader import Fact, Reader
from sparkserve.facts.rendered import Mount, RenderedArgv, RenderedMounts
from sparkserve.facts.settings_text import split_arguments
from sparkserve.model.reading import Reading


def _run_line(reading: Reading) -> Iterator[Fact]:
    argv = split_arguments(reading.text)
    yield RenderedArgv(argv=argv)
    words = [part for word in argv for part in _parted(word)]
    given: dict[str, list[str]] = {}
    for flag, value in pairwise(words):
        given.setdefault(flag, []).append(value)
    if rows := [*given.get("-e", ()), *given.get("--env", ())]:
        yield environment_of(rows, "rendered")
    if policy := given.get("--restart"):
        name, _, limit = policy[0].partition(":")
        yield Containers(
            containers=(
                Container(
                    name=given.get("--name", [None])[0],
                    restart_policy=name,
                    restart_limit=int(limit) if re.fullmatch(r"[0-9]{1,9}", limit) else None,
                ),
            )
        )
    volumes = [*given.get("-v", ()), *given.get("--volume", ())]
    pairs = [value.split(":") for value in volumes if value.count(":") in (1, 2)]
    if pairs:
        yield RenderedMounts(
            mounts=tuple(
                Mount(source=pair[0], target=pair[1], read_only="ro" in pair[2:] or None)
                for pair in pairs
            )
        )


def _parted(word: str) -> list[str]:
    """``--flag=value`` as two words; anything else as it is."""
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag.startswith("--") else [word]


READERS: tuple[Reader, ...] = (
    Reader(
        "containers.run", (RenderedArgv, RenderedMounts, Environment, Containers), _run_line,
        whats=(r"(?:rendered )?docker run(?: command| line| command line)?",),
    ),
)  # fmt: skip
