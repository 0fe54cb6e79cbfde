"""The cabling map: which port is joined to which, with what is known about both ends.

A cable is inferred, not seen: two ports of different nodes in one IPv4 network are one cable, or
two of which one names the other by LLDP; the two halves of a cage are one port. On a switch all
ports of a network are joined by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_view import at, has_fabric, topology
from sparkserve.checks.scene import Scene
from sparkserve.engine.gid import as_set, member
from sparkserve.facts.fabric_names import fabric_name
from sparkserve.facts.links import Links, Neighbours
from sparkserve.facts.rdma import Rdma
from sparkserve.facts.routes import Addresses
from sparkserve.model.base import Model


class CableEnd(Model):
    """One plug; None = not known."""

    node: str
    interface: str
    cage: int
    address: str
    """Empty where the cable is known by LLDP only."""
    mtu_bytes: int | None = None
    has_carrier: bool | None = None
    speed_mbps: int | None = None
    pcie: str | None = None
    """Such as ``x4 32 GT/s``."""
    rdma: str | None = None
    """RDMA device of the port."""
    gid: str | None = None
    """Usable GID indexes, such as ``{3}``."""

    @property
    def port(self) -> str:
        """``p0`` or ``p1``: the cage, as people name it."""
        return f"p{self.cage}"

    @property
    def text(self) -> str:
        """The end in one line."""
        known = [
            f"MTU {self.mtu_bytes}" if self.mtu_bytes is not None else None,
            "no carrier" if self.has_carrier is False else None,
            f"{self.speed_mbps // 1000}G" if self.speed_mbps is not None else None,
            f"PCIe {self.pcie}" if self.pcie else None,
            f"{self.rdma} GID {self.gid}" if self.rdma and self.gid else self.rdma,
        ]
        return f"{self.node} {self.port} {self.interface}: {', '.join(k for k in known if k)}"


class Cable(Model):
    """Two or more ends in one network; more than two means a switch."""

    number: int
    """From 1, for sentences such as ``swap cable 2``."""
    network: str
    ends: tuple[CableEnd, ...]
    advice: str = ""
    """What is wrong with it and what to do; empty = nothing."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the joined nodes."""
        return tuple(end.node for end in self.ends)

    @property
    def text(self) -> str:
        """``node1 p0 - node2 p1``."""
        return " - ".join(f"{end.node} {end.port}" for end in self.ends)


def cabling(scene: Scene) -> tuple[Cable, ...]:
    """Every cable of the scene, first halves before second ones, in the order of the networks.

    Empty where addresses of fewer than two nodes are known.
    """
    by_network: dict[str, list[CableEnd]] = {}
    for place, known in scene.each(Addresses):
        for one in known.addresses:
            parts = fabric_name(one.interface)
            if place is not None and parts is not None and one.is_ipv4:
                end = _end(scene, place, one.interface, one.address)
                by_network.setdefault(one.network, []).append(end)
    joined = [
        (network, ends) for network, ends in by_network.items() if len({e.node for e in ends}) > 1
    ]
    told = {frozenset((e.node, e.interface) for e in ends) for _, ends in joined}
    for pair in _by_lldp(scene):
        plugs = frozenset((end.node, end.interface) for end in pair)
        if not any(plugs <= known for known in told):
            told.add(plugs)
            joined.append(("LLDP", pair))
    cables = [
        Cable(number=number, network=network, ends=tuple(ends))
        for number, (network, ends) in enumerate(joined, 1)
    ]
    wrong = _same_index(scene, cables)
    return tuple(cable.model_copy(update={"advice": _advice(cable, wrong)}) for cable in cables)


def _by_lldp(scene: Scene) -> list[list[CableEnd]]:
    """Pairs of ends that say of each other, or one of the other, that they are joined."""
    return [
        [_end(scene, place, one.interface, ""), _end(scene, one.node, one.port, "")]
        for place, known in scene.each(Neighbours)
        for one in known.neighbours
        if place is not None and fabric_name(one.interface) and fabric_name(one.port)
    ]


def _end(scene: Scene, place: str, interface: str, address: str) -> CableEnd:
    links, rdma = at(scene, place, Links), at(scene, place, Rdma)
    link = links.named(interface) if links else None
    ports = rdma.ports if rdma else ()
    port = next((p for p in ports if p.netdev == interface), None)
    parts = fabric_name(interface)
    pcie = None
    if link is not None and link.pcie_width is not None:
        pcie = f"x{link.pcie_width}"
        pcie += f" {link.pcie_speed_gtps:g} GT/s" if link.pcie_speed_gtps is not None else ""
    return CableEnd(
        node=place,
        interface=interface,
        cage=parts.cage if parts else 0,
        address=address,
        mtu_bytes=link.mtu_bytes if link else None,
        has_carrier=link.has_carrier if link else None,
        speed_mbps=link.speed_mbps if link else None,
        pcie=pcie,
        rdma=port.name if port else None,
        gid=as_set(member(port, address or None, None).usable)
        if port and port.gids is not None
        else None,
    )


def _advice(cable: Cable, wrong: Sequence[Cable]) -> str:
    words = []
    if cable in wrong:
        words.append(f"joins equal ports: swap cable {cable.number} at one end")
    sizes = {end.mtu_bytes for end in cable.ends if end.mtu_bytes is not None}
    if len(sizes) > 1:
        words.append("MTU differs between its ends")
    dark = [end.node for end in cable.ends if end.has_carrier is False]
    if dark:
        words.append(f"no carrier at {', '.join(dark)}: reseat cable {cable.number}")
    return "; ".join(words)


@dataclass(frozen=True)
class _Graph:
    """Nodes and the cables between them, the halves of a cage as one."""

    nodes: tuple[str, ...]
    cables: tuple[Cable, ...]

    @property
    def is_cycle(self) -> bool:
        """Whether every node has two cables and all hang together."""
        degree = Counter(node for cable in self.cables for node in cable.nodes)
        if set(degree) != set(self.nodes) or set(degree.values()) != {2}:
            return False
        reached, border = {self.nodes[0]}, [self.nodes[0]]
        while border:
            here = border.pop()
            next_to = {n for c in self.cables if here in c.nodes for n in c.nodes} - reached
            reached |= next_to
            border += next_to
        return len(reached) == len(self.nodes)


def _graph(cables: Sequence[Cable], nodes: Sequence[str]) -> _Graph:
    """One edge per pair of cages: a network of the second halves is the same cable."""
    edges: dict[frozenset[tuple[str, int]], Cable] = {}
    for cable in cables:
        ends = frozenset((end.node, end.cage) for end in cable.ends)
        if len(cable.ends) == 2 and len(ends) == 2:
            edges.setdefault(ends, cable)
    return _Graph(tuple(nodes), tuple(edges.values()))


def _is_triangle(scene: Scene, graph: _Graph) -> bool:
    # A cluster file says "switch" where nobody decided, so there the shape of the cables counts.
    told = None if scene.fleet is not None else topology(scene)
    if len(graph.nodes) != 3 or told not in (None, "triangle", "ring", "mesh"):
        return False
    return graph.is_cycle


def _same_index(scene: Scene, cables: Sequence[Cable]) -> list[Cable]:
    """Cables of a triangle that join equal ports; for other shapes any pair of ports is right."""
    nodes = list(dict.fromkeys(node for cable in cables for node in cable.nodes))
    graph = _graph(cables, nodes)
    if not _is_triangle(scene, graph):
        return []
    return [c for c in graph.cables if c.ends[0].cage == c.ends[1].cage]


def _swaps(graph: _Graph) -> tuple[str, ...]:
    """The fewest nodes whose two plugs must change places so that every cable joins p0 to p1."""
    for swapped in sorted(product((0, 1), repeat=len(graph.nodes)), key=sum):
        turn = dict(zip(graph.nodes, swapped, strict=True))
        ports = [[end.cage ^ turn[end.node] for end in cable.ends] for cable in graph.cables]
        if all(one != other for one, other in ports):
            return tuple(node for node, turned in turn.items() if turned)
    return ()


def _judge_index(scene: Scene) -> Iterator[Judgement]:
    cables = cabling(scene)
    nodes = list(dict.fromkeys(node for cable in cables for node in cable.nodes))
    graph = _graph(cables, nodes)
    if not _is_triangle(scene, graph):
        return
    wrong = _same_index(scene, cables)
    if not wrong:
        yield passed(None, ", ".join(_named(cable) for cable in graph.cables))
        return
    right = [cable for cable in graph.cables if cable not in wrong]
    observed = "; ".join(f"cable {_named(cable)}" for cable in wrong)
    if right:
        observed += f"; right: {', '.join(_named(cable) for cable in right)}"
    nodes_to_swap = " and at ".join(_swaps(graph))
    fix = "re-cable so that every cable joins a p0 to a p1"
    if nodes_to_swap:
        fix += f": swap the two plugs at {nodes_to_swap} (with their addresses)"
    yield Judgement(
        None,
        "fail",
        observed=observed,
        expected="every cable of the triangle joins a p0 to a p1",
        fix=fix + ", and set NCCL_IB_SUBNET_AWARE_ROUTING=1",
    )


def _named(cable: Cable) -> str:
    one, other = cable.ends
    return f"{one.node}-{other.node} {one.port}-{other.port}"


def _judge_cycle(scene: Scene) -> Iterator[Judgement]:
    if topology(scene) != "ring":
        return
    known = [place for place, _ in scene.each(Addresses) if place is not None]
    nodes = [node.name for node in scene.fleet.nodes] if scene.fleet else known
    if len(nodes) < 3 or not set(nodes) <= set(known):
        return
    graph = _graph(cabling(scene), nodes)
    found = ", ".join(_named(cable) for cable in graph.cables) or "no cable"
    if graph.is_cycle:
        yield passed(None, found)
        return
    degree = Counter(node for cable in graph.cables for node in cable.nodes)
    odd = [f"{node} {degree[node]}" for node in nodes if degree[node] != 2]
    yield Judgement(
        None,
        "fail",
        observed=f"{found}; cables per node: {', '.join(odd) or 'two, but in separate circles'}",
        expected=f"one circle through all {len(nodes)} nodes, two cables each",
        fix="cable each node to its two neighbours, one network per cable; or set topology ="
        ' "switch" in the cluster file where a switch joins them',
    )


def _judge_ends(scene: Scene) -> Iterator[Judgement]:
    if not has_fabric(scene) and len(scene.each(Addresses)) < 2:
        return
    for cable in cabling(scene):
        sizes = Counter(end.mtu_bytes for end in cable.ends if end.mtu_bytes is not None)
        if len(sizes) < 2:
            continue
        largest = max(sizes)
        for end in cable.ends:
            if end.mtu_bytes is not None and end.mtu_bytes < largest:
                others = [e for e in cable.ends if e.mtu_bytes == largest]
                yield Judgement(
                    end.node,
                    "fail",
                    observed=f"{end.interface} MTU {end.mtu_bytes}, but {others[0].node}"
                    f" {others[0].interface} {largest} on {cable.network}",
                    expected=f"MTU {largest} at both ends",
                    fix=f"sudo ip link set {end.interface} mtu {largest}",
                )


CHECKS: tuple[Check, ...] = (
    Check(
        "CABLE.INDEX", "NET_CABLE_SAME_INDEX", "a triangle's cables join p0 to p1", ("doctor",),
        "error", "hardware", (Addresses, Neighbours), _judge_index,
        why="NCCL pairs devices by their index over all ranks, so a cable between equal ports makes"
        " it try two ports that are not joined",
        fix="re-cable so that every cable joins a p0 to a p1",
        symptom="With three nodes wired to each other `ibv_modify_qp` times out on some pairs; each"
        " pair alone works.",
    ),
    Check(
        "CABLE.CYCLE", "NET_NOT_A_CYCLE", "a ring is one circle", ("doctor",),
        "error", "hardware", (Addresses,), _judge_cycle,
        why="a ring without switch needs two cables per node in one circle",
        fix="cable each node to its two neighbours",
        symptom="Some nodes of a ring cannot reach each other at all.",
    ),
    Check(
        "CABLE.MTU", "NET_MTU_MISMATCH", "both ends have one MTU", ("doctor", "launch"),
        "error", "hardware", (Addresses,), _judge_ends,
        why="long packets of one end are dropped by the other, while short ones pass",
        fix="set the same MTU at both ends",
        symptom="Ping and SSH work, but transfers between two nodes stand still.",
    ),
)  # fmt: skip
