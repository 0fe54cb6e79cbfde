"""What a launch would run: argv, mounts, pins, digests, requests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from typing import Any, Self

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.settings_text import options_of, split_arguments
from sparkserve.facts.wanted import Wanted, from_keys
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading
from sparkserve.units import parse_bytes


class RenderedArgv(Fact):
    """The command line that a rank would be started with."""

    argv: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of its long options with their dashes, without values, in order, each once."""
        names = (re.match(r"--[A-Za-z][\w.\-]*", word) for word in self.argv)
        return tuple(dict.fromkeys(name[0] for name in names if name))

    def merged(self, other: Self) -> Self:
        """The first one: two command lines do not join."""
        return self


class ArgvUnderTest(RenderedArgv):
    """A command line that must come through every quoting unchanged."""


class Mount(Model):
    """One directory that a container would see."""

    source: str
    """Path on the node, or the name of a volume."""
    target: str
    read_only: bool | None = None
    """None = not said, which Docker takes as writable."""


class RenderedMounts(Fact):
    """Mounts of one rank."""

    mounts: tuple[Mount, ...]


class Pin(Model):
    """One library with the versions that a profile accepts."""

    name: str
    specifier: str
    """Such as ``==4.5.2`` or ``>=0.6.14,<1``; empty = any."""


class Pins(Fact):
    """Libraries that a profile pins."""

    pins: tuple[Pin, ...]


class ProfileDigests(Fact):
    """Digests that say whether what runs is what is wanted."""

    on_disk: str | None = None
    """Digest of the profile as it lies on disk."""
    running: str | None = None
    """Digest that a running container or process carries."""


class ProfileValue(Fact):
    """One value of a profile alone."""

    value: str
    about: str = ""
    """What it is, in the words of the reading, such as ``NFS server for node3``."""


class Transfer(Model):
    """One planned copy."""

    source: str
    target: str
    """Node or address that receives."""


class TransferPlan(Fact):
    """Copies that would be made."""

    transfers: tuple[Transfer, ...]


class Request(Fact):
    """A command that a user asks for."""

    argv: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Its long options by name without dashes; a bare one is True."""
        return options_of(self.argv)

    @property
    def size_bytes(self) -> int | None:
        """Value of ``--size``; None where there is none or it is no size."""
        size = self.options.get("size")
        if size is None or isinstance(size, bool):
            return None
        try:
            return parse_bytes(str(size))
        except ValueError:
            return None


class SharedMemory(Fact):
    """What lies in ``/dev/shm`` of a container."""

    used_bytes: int
    size_bytes: int | None = None


class RequestBody(Fact):
    """Body of a request to the endpoint."""

    body: dict[str, Any]


def _argv(reading: Reading) -> Iterable[Fact]:
    argv = split_arguments(reading.text)
    yield RenderedArgv(argv=argv)
    if options := options_of(argv):
        yield from_keys(options)


def _under_test(reading: Reading) -> Iterable[Fact]:
    yield ArgvUnderTest(argv=split_arguments(reading.text))


def _mounts(reading: Reading) -> Iterable[Fact]:
    found: list[Mount] = []
    for line in reading.text.splitlines():
        found += _mounts_of(line.strip().rstrip("\\").strip())
    if not found:
        raise UnusableOutput("no mount of the form source:target")
    yield RenderedMounts(mounts=tuple(found))


def _mounts_of(line: str) -> list[Mount]:
    if not line or line.startswith("#"):
        return []
    try:
        words = shlex.split(re.sub(r"(?:^|(?<= ))(?:-v|--volume|--mount)=", r"\g<0> ", line))
    except ValueError:
        return []
    found = []
    for word in words:
        if "source=" in word or "src=" in word:
            parts = dict(part.partition("=")[::2] for part in word.split(","))
            source, target = (
                next((parts[name] for name in names if name in parts), "")
                for names in (("source", "src"), ("target", "dst", "destination"))
            )
            read_only = True if "readonly" in parts or "ro" in parts else None
        else:
            match = re.fullmatch(r"([^:]+):(/[^:]*)(?::([\w,]+))?", word)
            if match is None:
                continue
            source, target = match[1], match[2]
            modes = (match[3] or "").split(",")
            read_only = True if "ro" in modes else False if "rw" in modes else None
        if source and target:
            found.append(Mount(source=source, target=target, read_only=read_only))
    return found


def _pins(reading: Reading) -> Iterable[Fact]:
    pattern = re.compile(
        r"([A-Za-z0-9][\w.\-]*)(?:\[[^\]]*\])? ?((?:(?:[=~!]?==|~=|[<>]=?) ?[\w.*+]+(?:, ?|$))+)"
    )
    found = []
    for line in re.split(r"[\n;]", reading.text):
        match = pattern.fullmatch(line.partition("#")[0].strip().strip("-\"', "))
        if match:
            found.append(Pin(name=match[1], specifier=re.sub(r"\s+", "", match[2]).rstrip(",")))
    if not found:
        raise UnusableOutput("no pin of the form name==version")
    yield Pins(pins=tuple(found))


_HEX = r"(?:sha256:)?([0-9a-f]{8,64})"


def _on_disk(reading: Reading) -> Iterable[Fact]:
    # `sha256sum FILE` writes the name behind the digest.
    yield ProfileDigests(on_disk=_digest(reading.text))


def _running(reading: Reading) -> Iterable[Fact]:
    text = reading.text
    named = r"(?i)profile[\w.\-]{0,60}(?:sha256|digest)"
    labelled = re.search(rf"{named}\"?\s*[=:]\s*\"?{_HEX}\b", text)
    yield ProfileDigests(running=labelled[1].lower() if labelled else _digest(text))


def _digest(text: str) -> str:
    found = re.search(rf"(?i)(?<![0-9a-z]){_HEX}(?![0-9a-z])", text)
    if found is None:
        raise UnusableOutput("no digest")
    return found[1].lower()


def _value(reading: Reading) -> Iterable[Fact]:
    text = reading.text.strip()
    if not text:
        raise UnusableOutput("no value")
    yield ProfileValue(value=text, about=reading.note or reading.label)


def _transfers(reading: Reading) -> Iterable[Fact]:
    pattern = r"(?:transfer|copy|send|rsync)?\s*:?\s*(\S+)\s*(?:->|→|=>|\bto\b)\s*(\S+?)[.,;]?"
    rows = (re.fullmatch(pattern, line.strip()) for line in reading.text.splitlines())
    found = tuple(Transfer(source=row[1], target=row[2]) for row in rows if row)
    if not found:
        raise UnusableOutput("no transfer of the form source -> target")
    yield TransferPlan(transfers=found)


def _request(reading: Reading) -> Iterable[Fact]:
    """A command, or the body of a request where the text holds one."""
    if "{" in reading.text:
        yield from _body(reading)
    else:
        yield Request(argv=split_arguments(reading.text))


def _body(reading: Reading) -> Iterable[Fact]:
    text = reading.text.strip()
    # A request as it went over the wire, or as curl was given it, has its body in braces.
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise UnusableOutput("no JSON object")
    try:
        body = json.loads(text[start : end + 1])
    except RecursionError as error:
        raise UnusableOutput("JSON nested too deep") from error
    if not isinstance(body, dict):
        raise UnusableOutput("no JSON object")
    yield RequestBody(body=body)


def _shared_memory(reading: Reading) -> Iterable[Fact]:
    block_bytes = 1 if re.search(r"-B ?1\b|--block-size=1\b", reading.command or "") else 1024
    for line in reading.text.splitlines():
        words = line.split()
        if len(words) < 5 or words[-1] != "/dev/shm":
            continue
        size, used = (_df_bytes(word, block_bytes) for word in words[-5:-3])
        if used is not None:
            yield SharedMemory(used_bytes=used, size_bytes=size)
            return
    raise UnusableOutput("no row of /dev/shm")


def _df_bytes(word: str, block_bytes: int) -> int | None:
    if word.isdecimal():
        return int(word) * block_bytes if len(word) < 20 else None
    try:
        return parse_bytes(word)
    except ValueError:
        return None


_ENGINE = r"(?:the |engine |launch |docker |container )?"
READERS: tuple[Reader, ...] = (
    Reader(
        "rendered.argv", (RenderedArgv, Wanted), _argv,
        whats=(
            r"(?:launch|start|run|serve) (?:script|command)",
            rf"(?:rendered|planned) {_ENGINE}(?:argv|arguments|args|command|command line)",
            r"(?:engine|launch|docker run) (?:argv|arguments|command|command line)",
        ),
    ),
    Reader("rendered.under_test", (ArgvUnderTest,), _under_test,
           whats=(r"argv (?:under test|to test)", r"test argv")),
    Reader("rendered.mounts", (RenderedMounts,), _mounts,
           whats=(rf"(?:rendered|planned) {_ENGINE}(?:mounts?|volumes?|binds?|-v list)",)),
    Reader("rendered.pins", (Pins,), _pins,
           whats=(r"(?:library |version |package |requirements? |image )?pins(?: of .*)?",
                  r"(?:requirements|constraints)(?:\.txt)?(?: of .*)?",
                  r"pinned (?:versions|libraries)",
                  r"profile(?:'s)? pins")),
    Reader("rendered.digest_on_disk", (ProfileDigests,), _on_disk,
           whats=(r"(?:sha256|digest|hash)(?:sum)? of (?:the )?profile(?: on disk)?",
                  r"profile (?:sha256|digest|hash)(?: on disk)?"),
           commands=(r"sha256sum \S*\.(?:toml|ya?ml)",)),
    Reader("rendered.digest_running", (ProfileDigests,), _running,
           whats=(r"(?:running )?container labels?", r"labels? of (?:the )?(?:running )?container",
                  r"(?:sha256|digest) of (?:the )?running profile"),
           commands=(r"(?:docker|podman) inspect\b.*\.Config\.Labels\b.*",)),
    Reader("rendered.value", (ProfileValue,), _value,
           whats=(r"(?:profile|rendered) value", r"value of the profile")),
    Reader("rendered.transfers", (TransferPlan,), _transfers,
           whats=(r"(?:transfer|copy|distribution) plan", r"planned transfers?")),
    Reader("rendered.shared_memory", (SharedMemory,), _shared_memory,
           commands=(r"(?:docker|podman|nerdctl) exec\b.*\bdf\b.*/dev/shm\b.*",)),
    Reader("rendered.request", (Request, RequestBody), _request,
           whats=(r"(?:test |doctor |load |bandwidth )?request",
                  r"(?:(?:requested|user's|test|doctor) )?(?:command|command line)")),
    Reader("rendered.body", (RequestBody,), _body,
           whats=(r"(?:chat |http |json |completion )?request (?:body|json|payload)",
                  r"body of (?:the|a) (?:chat )?request", r"(?:client )?payload")),
)  # fmt: skip
ASKS: tuple[Ask, ...] = ()
