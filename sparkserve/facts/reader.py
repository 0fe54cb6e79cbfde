"""Readers: which text is which, and the pure parser that turns it into facts.

A reader is chosen by what a reading says of itself (its command, path or kind), never by guessing
from its content. A text that its reader cannot use becomes ``Unobserved`` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from sparkserve.facts.probe import Context, Probe, UnusableOutput, interpret
from sparkserve.model.base import Model
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.reading import Format, Reading

_RAW_LIMIT = 2000
_LONGEST_LINE, _KEPT_HEAD, _KEPT_TAIL = 8000, 6000, 1990


class Fact(Model):
    """What one reading says; readings of one place about one kind of thing are merged."""

    def merged(self, other: Self) -> Self:
        """Both together: sequences are joined without repeats, else the first that knows wins."""
        both: dict[str, Any] = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, tuple) and isinstance(theirs, tuple):
                both[name] = mine + tuple(one for one in theirs if one not in mine)
            elif isinstance(mine, dict) and isinstance(theirs, dict):
                both[name] = theirs | mine
            else:
                both[name] = theirs if mine is None else mine
        return self.model_copy(update=both)


F = TypeVar("F", bound=Fact)


class Observation(NamedTuple):
    """One fact with its place and the reading that shows it."""

    place: str | None
    fact: Fact | Unobserved
    kind: type[Fact]
    reading: Reading


@dataclass(frozen=True)
class Reader:
    """How one kind of text is recognised and understood."""

    id: str
    """Such as ``rdma.show_gids``."""
    gives: tuple[type[Fact], ...]
    """Kinds of fact that it yields."""
    parse: Callable[[Reading], Iterable[Fact]]
    """Pure; any subset of ``gives``. Raises UnusableOutput where the text does not hold them."""
    commands: tuple[str, ...] = ()
    """Regular expressions, each for a whole command line (``re.fullmatch``)."""
    paths: tuple[str, ...] = ()
    """Regular expressions, each for a whole path."""
    whats: tuple[str, ...] = ()
    """Regular expressions, each for the whole of ``what``; letter case does not count."""
    holds: str | None = None
    """Regular expression that the text must hold besides, for what a program says in place of the
    answer that its command line promises: the refusal of ssh instead of the output behind it."""

    def takes(self, reading: Reading) -> bool:
        """Whether the reading says that it is of this kind."""
        return self._is_named(reading) and (
            self.holds is None or re.search(self.holds, plain_text(reading.text)) is not None
        )

    def _is_named(self, reading: Reading) -> bool:
        if reading.command is not None:
            line = bare_command(reading.command)
            return any(re.fullmatch(regex, line) for regex in self.commands)
        if reading.path is not None:
            return any(re.fullmatch(regex, reading.path) for regex in self.paths)
        what = " ".join((reading.what or "").split())
        return any(re.fullmatch(regex, what, re.IGNORECASE) for regex in self.whats)

    def read(self, reading: Reading) -> list[Observation]:
        """The reading's facts; one Unobserved per kind where the text is of no use."""
        text = without_prompt(plain_text(reading.text), reading.command)
        plain = reading if text == reading.text else reading.model_copy(update={"text": text})
        try:
            facts = list(self.parse(plain))
        except UnusableOutput as error:
            return self._nothing(reading, str(error))
        except (ValueError, OverflowError, RecursionError) as error:
            # pydantic's ValidationError, int() and json all end here: text of an unknown shape.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return self._nothing(reading, f"unexpected output: {reason}")
        return [Observation(reading.node, fact, type(fact), reading) for fact in facts]

    def _nothing(self, reading: Reading, reason: str) -> list[Observation]:
        fact = Unobserved(reason=reason, raw=reading.text[:_RAW_LIMIT])
        return [Observation(reading.node, fact, kind, reading) for kind in self.gives]


@dataclass(frozen=True)
class Ask:
    """One command or file that ``doctor`` reads on every node, within the one script."""

    id: str
    """Such as ``rdma.sysfs``; unique among asks and probes."""
    script: Callable[[Context], str]
    """POSIX shell, read only, quick; ``$ROOT`` holds the node's resolved root."""
    command: str | None = None
    """How the answer is named as a reading: exactly one of these three."""
    path: str | None = None
    what: str | None = None
    format: Format = "text"

    def reading(self, node: str, status: int, text: str) -> Reading:
        """The answer of one node as a reading."""
        return Reading(
            text=text, label=f"{node}: {self.command or self.path or self.what}", node=node,
            command=self.command, path=self.path, what=self.what, rc=status, format=self.format,
        )  # fmt: skip


def ask_command(ask_id: str, command: str, *, format: Format = "text") -> Ask:
    """An ask that runs exactly the command by which its answer is known."""
    return Ask(ask_id, lambda _: command, command=command, format=format)


def ask_file(ask_id: str, path: str, *, format: Format = "text") -> Ask:
    """An ask that prints one file."""
    return Ask(ask_id, lambda _: f"cat {path}", path=path, format=format)


def plain_text(text: str) -> str:
    """A text as parsers read it: no byte order mark or colours, plain line ends, no endless line.

    Notes: of a line longer than 8,000 characters the middle is left out, so that no pattern works
    on it for minutes; JSON is known by its form and stays whole.
    """
    text = _TERMINAL.sub("", text.removeprefix("\ufeff")).replace("\r\n", "\n")
    if len(text) <= _LONGEST_LINE or _is_json(text):
        return text
    # Variables of a process are separated by NUL, and all stand on one line.
    return "".join(
        f"{part[:_KEPT_HEAD]} ... {part[-_KEPT_TAIL:]}" if len(part) > _LONGEST_LINE else part
        for part in re.split(r"([\n\0])", re.sub(r"\n{50,}", "\n" * 50, text))
    )


_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[()][0AB])")
"""Colours, movements and window titles that a terminal takes out of what it shows."""
_PROMPT = r"\s*(?:\([\w.-]+\) ?)?\[?[\w.-]+@[\w.-]+[: ][^$#]{0,200}[$#]"


def without_prompt(text: str, command: str | None = None) -> str:
    """A text without the lines of the shell in which it was shown.

    The first line goes where it is a prompt with a command behind it (``$ `` alone counts only
    before the very command), the last where it is a prompt with nothing behind it.
    """
    lines = text.rstrip().split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    typed = " ".join(lines[first].split())
    bare = re.fullmatch(r"[$#>] (.+)", typed)
    is_echo = bare is not None and command is not None and _same(bare[1], command)
    start = first + 1 if is_echo or re.match(rf"{_PROMPT} \S", typed) else 0
    end = len(lines) - 1 if re.fullmatch(_PROMPT, lines[-1]) else len(lines)
    if (start, end) == (0, len(lines)):
        return text
    return "".join(f"{line}\n" for line in lines[start:end])


def _same(typed: str, command: str) -> bool:
    return bare_command(typed) == bare_command(command)


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_REDIRECTED = re.compile(r"(?: 2>&1| 2> ?/dev/null| \|\| ?true)+$")


def bare_command(command: str) -> str:
    """A command line without what does not change its meaning.

    ``sudo -n``, ``LC_ALL=C``, ``timeout 5``, a directory before the program's name, ``2>&1`` at the
    end and repeated blanks go; the rest stays as it is.
    """
    line = " ".join(command.split())
    before = ""
    while before != line:
        before = line
        line = re.sub(r"^(?:sudo -n |env |LC_ALL=\S+ |LANG=\S+ |timeout (?:-\S+ )*\S+ )", "", line)
    return re.sub(r"^/\S*/", "", _REDIRECTED.sub("", line))


_SHOWN = re.compile(r" \| ?(?:cat|less|more|tee \S+)$")
_WRAPPED = (
    r"sudo (?:-[A-Zk]+ |-u ?\S+ )*(?P<inner>[^-\s].*)",
    r"ssh (?:-[46AaCfGgKkMNnqsTtVvXxYy]+ |-[a-zA-Z] ?\S+ )*(?:\S+@)?[\w.:-]+ (?P<inner>.+)",
    # What a container says of its own disks and mounts is not said of the node.
    r"docker (?:container |compose )?exec (?:-\w+ |--\S+ )*\S+ "
    r"(?P<inner>(?!df|du|mount|findmnt).+)",
    r"(?:ba|da|z)?sh (?:-\w+ )*-\w*c (?P<inner>.+)",
)


def unwrapped(reading: Reading) -> Reading | None:
    """The reading as if its command had not come through sudo, ssh, a shell or ``docker exec``.

    None where it did not. ``cat FILE`` becomes the file, and a pager behind the command goes.
    """
    line = bare_command(reading.command or "")
    if (plain := _SHOWN.sub("", line)) != line:
        return reading.model_copy(update={"command": plain})
    if file := re.fullmatch(r"cat ([^\s|;&<>$*]+)", line):
        return reading.model_copy(update={"command": None, "path": file[1].strip("'\"")})
    found = next((match for regex in _WRAPPED if (match := re.fullmatch(regex, line))), None)
    if found is None:
        return None
    inner = found["inner"].strip()
    if len(inner) > 2 and inner[0] == inner[-1] and inner[0] in "'\"":
        inner = inner[1:-1].replace("\\" + inner[0], inner[0])
    note = f"{reading.note} in the container".strip() if line.startswith("docker") else reading.note
    return reading.model_copy(update={"command": inner, "note": note})


def _undirected(reading: Reading) -> Reading:
    """The reading without ``2>&1`` and the like behind its command."""
    plain = _REDIRECTED.sub("", reading.command or "")
    if plain == (reading.command or ""):
        return reading
    return reading.model_copy(update={"command": plain})


class Understood(NamedTuple):
    """What became of a set of readings."""

    observations: tuple[Observation, ...]
    unread: tuple[Reading, ...]
    """Readings that no reader takes; never guessed."""


def understand(readings: Sequence[Reading], readers: Sequence[Reader]) -> Understood:
    """Every reading through the first reader that takes it, as it stands or unwrapped."""
    observations: list[Observation] = []
    unread = []
    for reading in readings:
        inner: Reading | None = _undirected(reading)
        reader = None
        while inner is not None and reader is None:
            reader = next((one for one in readers if one.takes(inner)), None)
            if reader is None:
                inner = unwrapped(inner)
        if reader is None or inner is None:
            unread.append(reading)
        else:
            observations += [one._replace(reading=reading) for one in reader.read(inner)]
    return Understood(tuple(observations), tuple(unread))


def probe_ask(probe: Probe[Any]) -> Ask:
    """A launch's probe as a question of ``doctor``: its answer is known by the probe's id."""
    return Ask(probe.id, probe.script, what=f"probe {probe.id}")


def probe_facts(readings: Sequence[Reading], probes: Mapping[str, Probe[Any]]) -> dict[str, Any]:
    """Values of ``NodeFacts`` from the readings of one node that are answers of probes."""
    values: dict[str, Any] = {}
    for reading in readings:
        probe = probes.get((reading.what or "").removeprefix("probe "))
        if probe is not None and reading.rc is not None:
            values[probe.id] = interpret(probe, (reading.rc, reading.text))
    return values


__all__ = [
    "Ask", "Fact", "NodeFacts", "Observation", "Reader", "Understood", "ask_command", "ask_file",
    "bare_command", "probe_ask", "probe_facts", "understand", "unwrapped",
]  # fmt: skip
