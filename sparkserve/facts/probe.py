"""Probes: a piece of shell and a pure parser; all probes of a node travel as one script.

A bare node needs nothing of ours installed. Each probe prints between two marked lines and is
bounded in time; a probe that fails, hangs or prints nonsense becomes ``Unobserved`` with its
reason and hides nothing else.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from sparkserve.errors import NodeError
from sparkserve.model.base import Model
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.transport.host import GroupResult, Host, map_hosts

T = TypeVar("T", bound=Model)

PROBE_LIMIT_S = 15
_RAW_LIMIT = 2000


class UnusableOutput(ValueError):
    """A parser's way to say that the text does not hold what was asked for."""


@dataclass(frozen=True)
class Context:
    """What the probes of one node need to know about the wish; all paths as the user wrote them."""

    root: str
    python: str | None = None
    """Interpreter of the runtime; None = do not look for one."""
    model_path: str | None = None
    engram_dir: str | None = None
    peers: tuple[str, ...] = ()
    """Management addresses of the other nodes."""
    fabric_peers: tuple[str, ...] = ()
    """Addresses of the other nodes on the fast network."""


@dataclass(frozen=True)
class Probe(Generic[T]):
    """One thing to read from a node."""

    id: str
    kind: type[T]
    script: Callable[[Context], str]
    """POSIX shell, read only; ``$ROOT`` holds the node's resolved root."""
    parse: Callable[[str], T]
    """Pure; raises UnusableOutput where the text does not hold the fact."""

    def read(self, facts: NodeFacts) -> T | Unobserved:
        """This probe's answer among a node's facts."""
        return facts.get(self.id, self.kind)


class Section(Protocol):
    """A piece of shell with a name: a probe, or an ask of ``doctor``."""

    @property
    def id(self) -> str:
        """Unique within one script; no blanks."""

    @property
    def script(self) -> Callable[[Context], str]:
        """The piece for one node."""


def compose(probes: Sequence[Section], context: Context, marker: str) -> str:
    """One shell script that runs all sections, each between ``marker`` lines with its status."""
    parts = [
        "LC_ALL=C; export LC_ALL",
        'PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"',
        f"ROOT={shlex.quote(context.root)}",
        'case "$ROOT" in "~") ROOT=$HOME ;; "~/"*) ROOT="$HOME/${ROOT#"~/"}" ;; /*) ;;'
        ' *) ROOT="$HOME/$ROOT" ;; esac',
        "export ROOT",
        "if command -v timeout >/dev/null 2>&1; then"
        f" bounded() {{ timeout -k 2 {PROBE_LIMIT_S} sh; }}; else bounded() {{ sh; }}; fi",
    ]
    for probe in probes:
        end_of_probe = f"{marker}_{probe.id.replace('.', '_')}"
        parts += [
            f"printf '\\n{marker} begin {probe.id}\\n'",
            f"bounded <<'{end_of_probe}' 2>&1",
            probe.script(context),
            end_of_probe,
            f"printf '\\n{marker} end {probe.id} %s\\n' \"$?\"",
        ]
    return "\n".join(parts) + "\n"


def split(text: str, marker: str) -> dict[str, tuple[int, str]]:
    """Sections of a composed script's output: probe id -> (exit status, text)."""
    pattern = re.compile(
        rf"^{re.escape(marker)} begin (\S+)\n(.*?)\n{re.escape(marker)} end \1 (\d+)$",
        re.MULTILINE | re.DOTALL,
    )
    return {match[1]: (int(match[3]), match[2]) for match in pattern.finditer(text)}


def interpret(probe: Probe[T], section: tuple[int, str] | None) -> T | Unobserved:
    """Parse one section; whatever is wrong with it becomes the reason."""
    if section is None:
        return Unobserved(reason="the node's answer ended before this probe")
    status, text = section
    raw = text[:_RAW_LIMIT]
    if status in (124, 137):
        return Unobserved(reason=f"no answer within {PROBE_LIMIT_S} s", raw=raw)
    if status != 0:
        last = text.strip().splitlines()[-1:] or ["no output"]
        return Unobserved(reason=f"exit {status}: {last[0][:200]}", raw=raw)
    try:
        return probe.parse(text)
    except UnusableOutput as error:
        return Unobserved(reason=str(error), raw=raw)
    except ValueError as error:
        # pydantic's ValidationError and int() both end here: text of an unknown shape.
        return Unobserved(reason=f"unexpected output: {str(error).splitlines()[0]}", raw=raw)


def collect_node(
    host: Host, probes: Sequence[Probe[Any]], context: Context, *, timeout_s: float
) -> NodeFacts:
    """Read all probes of one node in one round trip.

    Raises:
        NodeError: the node could not be asked at all.
    """
    # Random, so that no file a probe prints can end its section.
    marker = f"@@sparkserve-{secrets.token_hex(8)}"
    result = host.script(compose(probes, context, marker), timeout_s=timeout_s)
    if result.status == "lost":
        raise NodeError(host.name, "the connection was lost while facts were read")
    sections = split(result.stdout, marker)
    if not sections and result.status == "exited":
        raise NodeError(
            host.name,
            f"no shell that runs scripts: exit {result.exit_code}: {result.tail(3) or 'no output'}",
            hint="give the SSH user a login shell such as /bin/sh on that node",
        )
    return NodeFacts(
        node=host.name,
        collected_at=datetime.now(UTC),
        elapsed_s=round(result.elapsed_s, 3),
        values={probe.id: interpret(probe, sections.get(probe.id)) for probe in probes},
    )


def collect(
    hosts: Sequence[Host], probes: Sequence[Probe[Any]], context: Context, *, timeout_s: float
) -> GroupResult[NodeFacts]:
    """Read all probes of all nodes in parallel."""
    return map_hosts(hosts, lambda host: collect_node(host, probes, context, timeout_s=timeout_s))
