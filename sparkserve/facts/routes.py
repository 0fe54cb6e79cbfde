"""Addresses, routes and name resolution of a place."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
import shlex
from collections.abc import Iterator

from pydantic import Field

from sparkserve.facts.links import Link, Links, ip_link_rows
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.sysfs import is_absent, wherever
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class Address(Model):
    """One address of one interface."""

    interface: str
    address: str
    prefix_length: int

    @property
    def is_ipv4(self) -> bool:
        """Whether it is an IPv4 address."""
        return ":" not in self.address

    @property
    def network(self) -> str:
        """The directly connected network, such as ``10.100.0.0/24``."""
        return str(ipaddress.ip_interface(f"{self.address}/{self.prefix_length}").network)


class Addresses(Fact):
    """Addresses of one place."""

    addresses: tuple[Address, ...] = ()
    listed: bool = False
    """Whether the reading shows every IPv4 address of the place."""

    def merged(self, other: Addresses) -> Addresses:
        """Both readings; either may be the complete one."""
        more = tuple(one for one in other.addresses if one not in self.addresses)
        return Addresses(addresses=self.addresses + more, listed=self.listed or other.listed)

    def ipv4_of(self, interface: str) -> tuple[str, ...]:
        """IPv4 addresses of one interface, in order."""
        return tuple(a.address for a in self.addresses if a.interface == interface and a.is_ipv4)

    def by_interface(self) -> dict[str, tuple[str, ...]]:
        """IPv4 addresses by interface."""
        return {a.interface: self.ipv4_of(a.interface) for a in self.addresses}

    def holder(self, address: str) -> str | None:
        """Interface that has the address."""
        return next((a.interface for a in self.addresses if a.address == address), None)


class Route(Model):
    """One line of a routing table, or the answer to ``ip route get``."""

    destination: str
    """``default``, a network, or the address that was asked for."""
    interface: str | None = None
    gateway: str | None = None
    source: str | None = None
    metric: int = 0
    is_answer: bool = False
    """Whether it is the kernel's answer for one destination."""


class Routes(Fact):
    """Routes of one place."""

    routes: tuple[Route, ...] = ()
    unreachable: tuple[str, ...] = ()
    """Destinations for which the kernel has no way."""

    def way_out(self) -> Route | None:
        """How the place reaches the world: an answer for a public address, or the default route."""
        answers = [r for r in self.routes if r.is_answer and _is_public(r.destination)]
        defaults = sorted(
            (r for r in self.routes if r.destination == "default"), key=lambda r: r.metric
        )
        return next(iter([*answers, *defaults]), None)


class HostAnswers(Fact):
    """Addresses by host name, in the order in which a client tries them."""

    answers: dict[str, tuple[str, ...]] = Field(default_factory=dict)


def _is_public(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


_WORD = r"(\S+)"
_ONE_LINE = re.compile(
    r"^\s*\d+:\s+([^\s:@]+)(?:@\S+)?:?\s+inet6?\s+([0-9a-fA-F.:]+)(?:\s+peer\s+\S+?)?/(\d+)", re.M
)
_HEAD = re.compile(r"^\d+:\s+([^\s:@]+)(?:@[^\s:]+)?:\s+<")
_INDENTED = re.compile(r"^\s+inet6?\s+([0-9a-fA-F.:]+)(?:\s+peer\s+\S+?)?/(\d+)")
_BRIEF = re.compile(r"^([^\s:@]+)(?:@\S+)?\s+(?:UP|DOWN|UNKNOWN)\s+(.*/\d+.*)$", re.M)
_IFCONFIG = re.compile(r"^\s+inet\s+(?:addr:)?(\d\S+)\s+.*?(?:netmask\s+|Mask:)(\S+)")


def _json_addresses(text: str) -> Iterator[tuple[str, str, str]]:
    """``ip -j addr``: one object per interface."""
    for row in json.loads(text):
        for one in row.get("addr_info") or () if isinstance(row, dict) else ():
            if isinstance(one, dict) and {"local", "prefixlen"} <= one.keys():
                yield str(row.get("ifname")), str(one["local"]), str(one["prefixlen"])


def _addresses(text: str) -> Iterator[tuple[str, str, str]]:
    if text.lstrip().startswith("["):
        yield from _json_addresses(text)
        return
    for row in _ONE_LINE.finditer(text):
        yield row[1], row[2], row[3]
    for row in _BRIEF.finditer(text):
        for word in row[2].split():
            address, slash, length = word.partition("/")
            if slash:
                yield row[1], address, length
    interface = ""
    for line in text.splitlines():
        if head := _HEAD.match(line) or re.match(r"^([^\s:]+):?\s.*(?:flags=|Link encap)", line):
            interface = head[1]
        elif interface and (inner := _INDENTED.match(line)):
            yield interface, inner[1], inner[2]
        elif interface and (inner := _IFCONFIG.match(line)):
            network = ipaddress.IPv4Network(f"0.0.0.0/{inner[2]}")
            yield interface, inner[1], str(network.prefixlen)


_FILTER = re.compile(r"\b(?:dev|show|up|scope|to|label)\s+(?!dev\b)\S+|\|")


def _ip_addr(reading: Reading) -> list[Fact]:
    """``ip addr`` in all its forms, and ``ifconfig``; link-local IPv6 is passed over."""
    if is_absent(reading):
        return []
    found = []
    for interface, address, length in _addresses(reading.text):
        one = ipaddress.ip_interface(f"{address}/{length}")
        if one.version == 4 or not one.ip.is_link_local:
            found.append(
                Address(interface=interface, address=str(one.ip), prefix_length=int(length))
            )
    links = tuple(Link.model_validate(row) for row in ip_link_rows(reading.text))
    if not found and not links:
        raise UnusableOutput("no address in the text")
    facts: list[Fact] = [Links(links=links)] if links else []
    whole = not _FILTER.search(reading.command or "") and "-6" not in (reading.command or "")
    return [*facts, Addresses(addresses=tuple(dict.fromkeys(found)), listed=whole)]


def _route(line: str, *, is_answer: bool) -> Route | None:
    words = line.split()
    if words[:1] == ["local"]:
        words = words[1:]
    if not words or not re.fullmatch(r"default|[0-9a-fA-F.:]+(?:/\d+)?", words[0]):
        return None
    pairs = dict(itertools.pairwise(words))
    if not {"dev", "via"} & pairs.keys():
        return None
    metric = pairs.get("metric", "0")
    return Route(
        destination=words[0],
        interface=pairs.get("dev"),
        gateway=pairs.get("via"),
        source=pairs.get("src"),
        metric=int(metric) if metric.isdigit() else 0,
        is_answer=is_answer,
    )


def _ip_route(reading: Reading) -> list[Fact]:
    """``ip route`` and ``ip route get ADDRESS``."""
    if is_absent(reading):
        return []
    is_answer = re.search(r"\bget\b", reading.command or reading.what or "") is not None
    routes = [_route(line, is_answer=is_answer) for line in reading.text.splitlines()]
    known = tuple(route for route in routes if route is not None)
    lost: tuple[str, ...] = ()
    if re.search(r"Network is unreachable|No route to host", reading.text):
        asked = re.search(r"\bget (\S+)", reading.command or "")
        lost = (asked[1],) if asked else ()
    if not known and not lost:
        if not reading.text.strip() and not is_answer:
            return [Routes()]
        raise UnusableOutput("no route in the text")
    return [Routes(routes=known, unreachable=lost)]


def _peer_routes(reading: Reading) -> list[Fact]:
    """``peer ADDRESS`` lines, each with the kernel's answer or its refusal behind it."""
    routes, lost = [], []
    for part in re.split(r"(?m)^peer ", reading.text)[1:]:
        address, _, answer = part.partition("\n")
        found = [_route(line, is_answer=True) for line in answer.splitlines()]
        known = [route for route in found if route is not None]
        routes += known[:1]
        if not known and re.search(r"unreachable|No route", answer):
            lost.append(address.strip())
    if not routes and not lost:
        if "no peers" in reading.text:
            return []
        raise UnusableOutput("no route to a peer in the text")
    return [Routes(routes=tuple(routes), unreachable=tuple(lost))]


def _route_n(reading: Reading) -> list[Fact]:
    """``route -n`` and ``netstat -rn``."""
    if is_absent(reading):
        return []
    routes = []
    for line in reading.text.splitlines():
        words = line.split()
        if len(words) >= 8 and re.fullmatch(r"[\d.]+|default", words[0]):
            destination = "default" if words[0] in ("0.0.0.0", "default") else words[0]
            if destination != "default":
                destination = str(ipaddress.IPv4Network(f"{destination}/{words[2]}", strict=False))
            gateway = None if words[1] in ("0.0.0.0", "*") else words[1]
            metric = int(words[4]) if words[4].isdigit() else 0
            routes.append(
                Route(destination=destination, gateway=gateway, interface=words[7], metric=metric)
            )
    if not routes:
        raise UnusableOutput("no route in the text")
    return [Routes(routes=tuple(routes))]


def _getent(reading: Reading) -> list[Fact]:
    """``getent ahosts NAME``: one line per address and socket type."""
    asked = re.search(r"\b(?:ahosts|hosts)\s+(\S+)", reading.command or "")
    found: dict[str, None] = {}
    for line in reading.text.splitlines():
        words = line.split()
        if words:
            found[str(ipaddress.ip_address(words[0].partition("%")[0]))] = None
    if asked is None or not found:
        raise UnusableOutput("no address for the name")
    return [HostAnswers(answers={asked[1]: tuple(found)})]


READERS: tuple[Reader, ...] = (
    Reader(
        "routes.addresses",
        (Addresses,),
        _ip_addr,
        commands=wherever(r"ip (?:-\S+ )*a(?:d|dd|ddr|ddress)?\b.*", r"ifconfig\b.*"),
    ),
    Reader("routes.peers", (Routes,), _peer_routes, whats=(r"fabric routes",)),
    Reader(
        "routes.table",
        (Routes,),
        _ip_route,
        commands=wherever(
            r"ip (?:-\S+ )*r(?:o|ou|oute)?\b.*",
        ),
    ),
    Reader(
        "routes.old",
        (Routes,),
        _route_n,
        commands=wherever(
            r"route .*-\w*n.*|netstat .*-\w*r.*",
        ),
    ),
    Reader(
        "routes.names",
        (HostAnswers,),
        _getent,
        commands=wherever(
            r"getent ahosts(?:v4|v6)? \S+",
        ),
    ),
)


def _script_peers(context: Context) -> str:
    if not context.fabric_peers:
        return "echo no peers"
    peers = " ".join(shlex.quote(peer) for peer in context.fabric_peers)
    return f'for p in {peers}; do echo "peer $p"; ip -4 route get "$p" 2>&1; done; :'


ASKS: tuple[Ask, ...] = (
    Ask("routes.addresses", lambda _: "ip -o addr", command="ip -o addr"),
    Ask("routes.peers", _script_peers, what="fabric routes"),
    Ask("routes.table", lambda _: "ip -4 route", command="ip -4 route"),
)
