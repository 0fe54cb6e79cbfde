"""Which GID index NCCL must be told on one node, by NCCL's own rules of selecting ports.

One index serves all ports that ``NCCL_IB_HCA`` selects on a node; it differs between nodes and
moves while they run, so it is found from that node's own tables at every launch. Nothing here
reads a node or the environment. The rules are those of NCCL's port selection as the two-Spark
recipe mirrors them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkserve.model.profile import GidPolicy
from sparkserve.model.rdma import RdmaPort

MAX_TOKENS = 32
"""Names of a selector that count, and ports that are kept, as in NCCL."""
MAX_NAME_BYTES = 63
MAX_NUMBER = 999_999_999
ANY_PORT = -1
NO_ADDRESS = "no IPv4 address of this node is known"
UNSET_NEEDS_NCCL = (2, 29, 3)
"""Oldest NCCL with which the index may be left to NCCL [proposal]."""


class Token(NamedTuple):
    """One name of a selector."""

    name: bytes
    port: int
    """``ANY_PORT`` where none was given."""


@dataclass(frozen=True)
class Selector:
    """A parsed ``NCCL_IB_HCA``; without tokens it names every port, so ``^`` alone selects none."""

    text: str
    excludes: bool = False
    exact: bool = False
    tokens: tuple[Token, ...] = ()
    left_out: int = 0
    """Names behind the thirty-second, which NCCL does not read."""

    def names(self, port: RdmaPort) -> bool:
        """Whether any token matches the port; an empty list matches all."""
        return not self.tokens or any(self._matches(token, port) for token in self.tokens)

    def selects(self, port: RdmaPort) -> bool:
        """Whether NCCL would take the port."""
        return self.names(port) != self.excludes

    def _matches(self, token: Token, port: RdmaPort) -> bool:
        name = _cut(port.device)
        same = name == token.name if self.exact else name.startswith(token.name)
        return same and token.port in (ANY_PORT, port.port)


def c_atoi(text: str) -> int:
    """C's ``atoi``, base 10 always, with magnitudes over nine digits held at 999999999.

    No digits give 0. The limit keeps a number that would wrap to -1 from meaning any port.
    """
    found = re.match(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)", text)
    if found is None:
        return 0
    digits = found[2].lstrip("0") or "0"
    magnitude = MAX_NUMBER if len(digits) > 9 else int(digits)
    return -magnitude if found[1] == "-" else magnitude


def parse_selector(text: str | None) -> Selector:
    """``[^][=]name[:port[:rail[:plane]]],...``; rail and plane are read past."""
    rest = text or ""
    excludes = rest.startswith("^")
    rest = rest[1:] if excludes else rest
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    tokens = []
    for part in rest.split(","):
        name, _, behind = part.partition(":")
        if name:
            number = behind.partition(":")[0]
            tokens.append(Token(_cut(name), c_atoi(number) if number else ANY_PORT))
    kept = tuple(tokens[:MAX_TOKENS])
    return Selector(text or "", excludes, exact, kept, len(tokens) - len(kept))


def _cut(name: str) -> bytes:
    return name.encode(errors="surrogateescape")[:MAX_NAME_BYTES]


@dataclass(frozen=True)
class Selection:
    """The ports of one node that NCCL would take, and why others are not among them."""

    members: tuple[RdmaPort, ...]
    inactive: tuple[RdmaPort, ...] = ()
    other_layer: tuple[RdmaPort, ...] = ()
    cut: tuple[RdmaPort, ...] = ()
    """Selected, but behind the thirty-second."""


def select(ports: Sequence[RdmaPort], selector: Selector) -> Selection:
    """State and link layer are tested before the selector, in listing order.

    What could not be read is no evidence of inactivity: such a port stays a candidate.
    """
    inactive = tuple(port for port in ports if port.is_up is False)
    alive = [port for port in ports if port.is_up is not False]
    layers = ("Ethernet", "InfiniBand", None)
    other = tuple(port for port in alive if port.link_layer not in layers)
    chosen = [port for port in alive if port.link_layer in layers and selector.selects(port)]
    return Selection(tuple(chosen[:MAX_TOKENS]), inactive, other, tuple(chosen[MAX_TOKENS:]))


@dataclass(frozen=True)
class Member:
    """One selected port with every index that works on it."""

    port: RdmaPort
    usable: tuple[int, ...]
    preferred: tuple[int, ...] = ()
    """Those whose GID is the preferred address."""


def member(
    port: RdmaPort, preferred_ip: str | None, addresses: Mapping[str, Collection[str]] | None
) -> Member:
    """Indexes of RoCE v2 rows that stand for the preferred address or one of the row's netdev.

    addresses: IPv4 addresses by network device; None = not known, then a row's address counts
        as its own, as where only a table was pasted.
    """
    usable, preferred = [], []
    for gid in port.gids or ():
        address = gid.ipv4
        if not gid.is_v2 or address is None:
            continue
        if address == preferred_ip:
            preferred.append(gid.index)
        elif addresses is not None:
            netdev = gid.netdev or port.netdev
            if address not in addresses.get(netdev or "", ()):
                continue
        usable.append(gid.index)
    return Member(port, tuple(sorted(usable)), tuple(sorted(preferred)))


@dataclass(frozen=True)
class GidChoice:
    """The index for one node and why, or why there is none."""

    index: int | None
    reason: str
    members: tuple[Member, ...] = ()
    notes: tuple[str, ...] = ()
    """What was cut or skipped on the way."""

    @property
    def sets(self) -> str:
        """Every member's usable set, in one line."""
        return "; ".join(f"{m.port.name} {as_set(m.usable)}" for m in self.members)


def as_set(indexes: Collection[int]) -> str:
    """``{3, 5}``; ``{}`` for none."""
    return "{" + ", ".join(str(index) for index in sorted(indexes)) + "}"


@dataclass(frozen=True)
class GidQuestion:
    """What one node has and is told."""

    ports: Sequence[RdmaPort]
    selector: str | None = None
    """Value of ``NCCL_IB_HCA``; None or empty selects every port."""
    preferred_ip: str | None = None
    addresses: Mapping[str, Collection[str]] | None = field(default=None)
    """IPv4 addresses by network device; None = not known."""


def resolve(question: GidQuestion) -> GidChoice:
    """The lowest index that works on every selected port, the preferred address first.

    There is no default: where nothing fits, ``index`` is None and ``reason`` names what was not
    found.
    """
    selector = parse_selector(question.selector)
    selection = select(question.ports, selector)
    notes = _notes(selector, selection)
    if not selection.members:
        return GidChoice(None, _nothing_selected(selector, selection), notes=notes)
    if question.preferred_ip is None:
        return GidChoice(None, NO_ADDRESS, notes=notes)
    members = tuple(
        member(port, question.preferred_ip, question.addresses) for port in selection.members
    )
    empty = [m.port.name for m in members if not m.usable]
    if empty:
        reason = f"no RoCE v2 row with an IPv4 address of the node on {', '.join(empty)}"
        return GidChoice(None, reason, members, notes)
    common = common_indexes(members)
    if not common:
        reason = "no index works on all selected ports; name fewer in NCCL_IB_HCA: "
        return GidChoice(None, reason + GidChoice(None, "", members).sets, members, notes)
    by_preferred = sorted(common & {index for m in members for index in m.preferred})
    index = by_preferred[0] if by_preferred else min(common)
    way = f"address {question.preferred_ip}" if by_preferred else "an address of the port's netdev"
    reason = f"lowest of {as_set(common)} on {', '.join(m.port.name for m in members)} by {way}"
    return GidChoice(index, reason, members, notes)


def common_indexes(members: Sequence[Member]) -> set[int]:
    """Indexes that work on every member; none without members."""
    return set.intersection(*(set(m.usable) for m in members)) if members else set()


def _notes(selector: Selector, selection: Selection) -> tuple[str, ...]:
    notes = []
    if selector.left_out:
        notes.append(f"{selector.left_out} names behind the {MAX_TOKENS}nd are not read")
    if selection.cut:
        names = ", ".join(port.name for port in selection.cut)
        notes.append(f"more than {MAX_TOKENS} ports selected; left out: {names}")
    return tuple(notes)


def _nothing_selected(selector: Selector, selection: Selection) -> str:
    words = [f"NCCL_IB_HCA={selector.text} selects no port"]
    if selection.inactive:
        words.append(f"not active: {', '.join(port.name for port in selection.inactive)}")
    if selection.other_layer:
        names = (f"{port.name} ({port.link_layer})" for port in selection.other_layer)
        words.append(f"other link layer: {', '.join(names)}")
    return "; ".join(words)


def preferred_ip(
    explicit: str | None,
    of_interface: Sequence[str] = (),
    host_variable: str | None = None,
    host: str | None = None,
) -> str | None:
    """The first literal IPv4 address of: setting, socket interface, host variable, host.

    of_interface: addresses of the socket interface in listing order; only its first IPv4 counts.
    """
    first = next((text for text in of_interface if _is_ipv4(text)), None)
    return next((t for t in (explicit, first, host_variable, host) if t and _is_ipv4(t)), None)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


class GidDecision(NamedTuple):
    """What to put into ``NCCL_IB_GID_INDEX`` of one rank."""

    value: str | None
    """None = leave the variable out; never an empty text."""
    problem: str = ""
    """Why the rank must not start; empty = it may."""
    remark: str = ""


def decide(
    policy: GidPolicy,
    choice: GidChoice,
    pin: int | None = None,
    nccl_version: tuple[int, int, int] | None = None,
) -> GidDecision:
    """Apply a policy to what was resolved; the tables are validated under every policy.

    ``resolve`` takes the result and remarks on a pin that differs; ``unset`` needs a current
    NCCL; ``pin`` takes the pin where it lies in the usable set of every member.
    """
    if policy == "pin":
        if pin is None:
            return GidDecision(None, problem="policy pin without an index")
        bad = [m.port.name for m in choice.members if pin not in m.usable]
        if bad or not choice.members:
            where = ", ".join(bad) or choice.reason
            return GidDecision(None, problem=f"pinned index {pin} is not usable: {where}")
        return GidDecision(str(pin))
    if policy == "unset":
        if nccl_version is None or nccl_version < UNSET_NEEDS_NCCL:
            needed = ".".join(map(str, UNSET_NEEDS_NCCL))
            told = ".".join(map(str, nccl_version)) if nccl_version else "unknown"
            problem = f"leaving the index unset needs NCCL {needed}, found {told}"
            return GidDecision(None, problem=problem)
        blind = [m.port.name for m in choice.members if not m.usable]
        if blind or not choice.members:
            return GidDecision(None, problem=choice.reason)
        return GidDecision(None)
    if choice.index is None:
        return GidDecision(None, problem=choice.reason)
    differs = pin is not None and pin != choice.index
    remark = f"the pin {pin} differs from the resolved {choice.index}" if differs else ""
    return GidDecision(str(choice.index), remark=remark)
