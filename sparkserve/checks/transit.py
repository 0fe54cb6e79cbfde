"""Packets that pass through a node on their way: forwarding, packet filter, routes.

Only a ring of four and more nodes without a switch needs it: a node's far neighbours lie behind
its near ones.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from sparkserve.checks.check import Check, Judgement, passed, unknown
from sparkserve.checks.fabric_view import at, rests_on, topology
from sparkserve.checks.scene import Scene
from sparkserve.facts.fabric_names import fabric_name
from sparkserve.facts.firewall import Forwarding, PacketFilter
from sparkserve.facts.packet_rules import Chain, Rule
from sparkserve.facts.routes import Addresses, Routes

_DIRECT = ("solo", "pair", "triangle", "switch", "switched", "star")
_DEPTH = 8
_USUAL = ("enp1s0f0np0", "enp1s0f1np1")
"""A Spark's two cages, where the texts name none."""


def _needs_transit(scene: Scene) -> bool | None:
    """Whether nodes must pass on packets of others; None = nobody says how they are wired."""
    told = topology(scene)
    if told is None:
        return None
    nodes = len(scene.fleet.nodes) if scene.fleet else scene.wanted.nodes
    return told not in _DIRECT and (nodes is None or nodes > 3)


def _judge(scene: Scene) -> Iterator[Judgement]:
    needed = _needs_transit(scene)
    if needed is False:
        return
    if needed:
        for place, unread in scene.blind(PacketFilter):
            yield unknown(place, unread)
    kinds = (Forwarding, PacketFilter)
    for place in dict.fromkeys(p for kind in kinds for p, _ in scene.each(kind)):
        forwarding, rules = at(scene, place, Forwarding), at(scene, place, PacketFilter)
        ways = _ways(scene, place, rules)
        if not (needed or _meant(rules) or _asked(scene, place)):
            continue
        problems, fixes = [], []
        if forwarding is not None and not forwarding.ip_forward:
            problems.append("net.ipv4.ip_forward is 0")
            fixes.append("sudo sysctl -w net.ipv4.ip_forward=1")
        told = _closed(rules, ways) if rules is not None and rules.chains else ([], [])
        problems += told[0]
        fixes += told[1]
        astray = _astray(scene, place)
        problems += astray
        if astray:
            fixes.append("sudo ip route add <that network> via <neighbour on the way>")
        lost = _routeless(scene, place) if needed else []
        problems += [f"no route to {network}" for network in lost]
        fixes += [f"sudo ip route add {network} via <neighbour on the way>" for network in lost]
        if problems:
            yield Judgement(
                place,
                "fail",
                observed="; ".join(problems),
                expected="ip_forward 1, a route to every fabric network, and an unrestricted"
                " DOCKER-USER ACCEPT in both directions",
                fix="; ".join(fixes) + " (and in a unit that survives a reboot)",
                evidence=rests_on(scene, place, *kinds, Routes),
            )
        else:
            yield passed(place, "packets of other nodes pass in both directions")


def _meant(rules: PacketFilter | None) -> bool:
    """Whether a rule speaks of two fabric interfaces: somebody set up the transit."""
    chain = rules.chain("DOCKER-USER") or rules.chain("FORWARD") if rules else None
    return any(len(_pair(rule)) == 2 for rule in (chain.rules if chain else ()))


def _asked(scene: Scene, place: str | None) -> bool:
    """Whether forwarding and the chain for it were read on purpose, as one does for a ring."""
    asked = any(
        re.search(r"DOCKER-USER", reading.command or "") and where == place
        for where, _, reading in scene.seen(PacketFilter)
    )
    return asked and scene.of(place, Forwarding) is not None


def _pair(rule: Rule) -> tuple[str, ...]:
    names = (rule.incoming, rule.outgoing)
    return tuple(name for name in names if name and fabric_name(name.rstrip("+")))


def _ways(scene: Scene, place: str | None, rules: PacketFilter | None) -> list[tuple[str, str]]:
    """Ordered pairs of fabric interfaces of different cages, first halves only."""
    names = [
        name for chain in (rules.chains if rules else ()) for r in chain.rules for name in _pair(r)
    ]
    addresses = at(scene, place, Addresses)
    names += [a.interface for a in (addresses.addresses if addresses else ()) if a.is_ipv4]
    by_cage: dict[int, str] = {}
    for name in names:
        parts = fabric_name(name)
        if parts is not None:
            by_cage.setdefault(parts.cage, name)
    first = sorted(by_cage.items()) if len(by_cage) > 1 else list(enumerate(_USUAL))
    return [(one, other) for a, one in first for b, other in first if a != b]


def _closed(rules: PacketFilter, ways: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """What is dropped between the two cages, with the commands that open it."""
    verdicts = {way: _verdict(rules, *way) for way in ways}
    closed = [way for way, is_open in verdicts.items() if not is_open]
    problems = []
    if closed:
        opened = [_way(way) for way, is_open in verdicts.items() if is_open]
        if opened:
            problems.append(f"only one direction is accepted ({', '.join(opened)})")
        problems += [f"{_way(way)} is dropped" for way in closed]
    return problems, [
        f"sudo iptables -I DOCKER-USER -i {one} -o {other} -j ACCEPT" for one, other in closed
    ]


def _way(way: tuple[str, str]) -> str:
    cages = [parts.cage for name in way if (parts := fabric_name(name))]
    return f"f{cages[0]} to f{cages[1]}: {way[0]} to {way[1]}"


def _verdict(rules: PacketFilter, incoming: str, outgoing: str) -> bool:
    """Whether a packet of this way passes; Docker's policy of FORWARD is to drop."""
    forward = rules.chain("FORWARD")
    start = forward or rules.chain("DOCKER-USER")
    told = _walk(rules, start, (incoming, outgoing), _DEPTH) if start else None
    if told is None and forward is not None and not forward.rules and rules.chain("DOCKER-USER"):
        told = _walk(rules, rules.chain("DOCKER-USER"), (incoming, outgoing), _DEPTH)
    if told is not None:
        return told
    return forward is not None and forward.policy == "ACCEPT"


def _walk(
    rules: PacketFilter, chain: Chain | None, way: tuple[str, str], depth: int
) -> bool | None:
    """The first rule that decides; None where the chain ends without one."""
    for rule in chain.rules if chain and depth else ():
        if not rule.covers(*way):
            continue
        if rule.target == "ACCEPT":
            return True
        if rule.target in ("DROP", "REJECT"):
            return False
        if rule.target == "RETURN":
            return None
        deeper = _walk(rules, rules.chain(rule.target), way, depth - 1)
        if deeper is not None:
            return deeper
    return None


def _routeless(scene: Scene, place: str | None) -> list[str]:
    """Fabric networks of other nodes that this place has no route to, the default aside."""
    routes, own = scene.of(place, Routes), scene.of(place, Addresses)
    table = [route for route in routes.routes if not route.is_answer] if routes else []
    if not table or own is None:
        return []
    here = {a.network for a in own.addresses if a.is_ipv4}
    known = [_network(route.destination) for route in table]
    lost = []
    for other, addresses in scene.each(Addresses):
        if other == place:
            continue
        for one in addresses.addresses:
            if not one.is_ipv4 or fabric_name(one.interface) is None or one.network in here:
                continue
            target = ipaddress.IPv4Network(one.network)
            if not any(net is not None and target.subnet_of(net) for net in known):
                lost.append(one.network)
    return list(dict.fromkeys(lost))


def _astray(scene: Scene, place: str | None) -> list[str]:
    """Private destinations that were asked for and leave by a gateway outside the fabric."""
    routes = scene.of(place, Routes)
    if routes is None:
        return []
    astray = [
        f"the way to {route.destination} leaves by {route.interface}"
        for route in routes.routes
        if route.is_answer and route.gateway and route.interface
        and fabric_name(route.interface) is None and _is_private(route.destination)
    ]  # fmt: skip
    return [f"no route to {address}" for address in routes.unreachable] + astray


def _is_private(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_private
    except ValueError:
        return False


def _network(text: str) -> ipaddress.IPv4Network | None:
    if text == "default":
        return None
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None


CHECKS: tuple[Check, ...] = (
    Check(
        "RING.TRANSIT", "NET_TRANSIT_DROPPED", "a ring's nodes pass on packets", ("doctor",),
        "error", "hardware", (Forwarding,), _judge,
        why="every node of a ring must pass on packets of the others, and installing Docker makes"
        " the kernel drop them",
        fix="ip_forward=1 and DOCKER-USER ACCEPT between the two fabric interfaces, both ways",
        symptom="In a ring the neighbours answer, but the node two hops away is dead, as if its"
        " cable were broken.",
    ),
)  # fmt: skip
