"""GID tables against the index that NCCL is told to use.

With a full profile the judgement is the very plan that a launch follows; a text that tells of an
index is judged by what it tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_view import at, is_alone, pin_at, selector_at, variables_at
from sparkserve.checks.scene import Scene
from sparkserve.engine.gid import Member, as_set, common_indexes, member, preferred_ip, select
from sparkserve.facts import host, network
from sparkserve.facts.nccl_library import NcclFiles, Version
from sparkserve.facts.rdma import NoRdma, Rdma
from sparkserve.facts.routes import Addresses
from sparkserve.model.cluster import Node
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.rdma import RdmaPort
from sparkserve.planning import gids as planning
from sparkserve.planning.gids import GidEnd, GidPlan
from sparkserve.planning.places import rendezvous_address

_UNSET = (
    "leave NCCL_IB_GID_INDEX unset, so that NCCL picks per device, or let sparkserve launch find it"
    " on each node (fabric.gid_policy = resolve)"
)


_RESOLVE = "--set fabric.gid_policy=resolve, which finds the index of each node at every launch"


def planned(scene: Scene) -> tuple[GidPlan, ...]:
    """What a launch tells every node, in rank order.

    Nothing where profile or cluster are not known, no node was asked, or no index is wanted.
    """
    if scene.wish is None or scene.fleet is None or not scene.facts:
        return ()
    nodes = scene.fleet.nodes
    if not planning.is_asked(scene.wish, len(nodes)):
        return ()
    return planning.plan(scene.wish, [_end(scene, node) for node in nodes])


def _end(scene: Scene, node: Node) -> GidEnd:
    rdma, blind = scene.of(node.name, Rdma), dict(scene.blind(Rdma)).get(node.name)
    ports = rdma.ports if rdma is not None else None
    if rdma is None and scene.of(node.name, NoRdma) is not None:
        ports = ()
    facts = scene.facts[node.name]
    unread = "" if blind is None else blind.reason
    seen = network.ADDRESSES.read(facts)
    if isinstance(seen, Unobserved):
        return GidEnd(node.name, ports, unread=unread or seen.reason)
    addresses: dict[str, list[str]] = {}
    for one in seen.addresses:
        addresses.setdefault(one.interface, []).append(one.address)
    return GidEnd(
        node.name,
        ports,
        addresses,
        _preferred(scene, node, facts, addresses),
        _nccl(scene.of(node.name, NcclFiles)),
        unread,
    )


def _preferred(
    scene: Scene, node: Node, facts: NodeFacts, addresses: dict[str, list[str]]
) -> str | None:
    identity = host.IDENTITY.read(facts)
    reached = None if isinstance(identity, Unobserved) else identity.ssh_address
    address = rendezvous_address(node, reached, scene.profile)
    holder = next((name for name, held in addresses.items() if address in held), None)
    interface = node.interface or holder
    own = addresses.get(interface, []) if interface else []
    return preferred_ip(node.fabric_address, own, address, node.host)


def _nccl(known: NcclFiles | None) -> Version | None:
    """The oldest version that an engine of this node might load; the runtime's own count first."""
    files = known.files if known else ()
    own = [file.version for file in files if file.pid is None and file.version]
    return min(own or [file.version for file in files if file.version], default=None)


def _judge(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    # A node that did not answer is another check's finding.
    plans = [one for one in planned(scene) if scene.facts[one.node].values]
    for one in plans:
        yield from _by_plan(scene, one)
    for place, rdma in scene.each(Rdma):
        running = "NCCL_IB_GID_INDEX" in variables_at(scene, place)
        if any(one.node == place for one in plans) and not running:
            continue
        ports = [port for port in rdma.ports if port.gids is not None]
        if not ports:
            continue
        pin, selector = pin_at(scene, place), selector_at(scene, place)
        selection = select(ports, selector)
        chosen = list(selection.members)
        named = bool(selector.tokens)
        if not named or not chosen:
            # Without names, and where none fits, the ports that carry an address are meant.
            alive = [port for port in ports if port.is_up is not False]
            addressed = [p for p in alive if any(gid.ipv4 for gid in p.gids or ())]
            chosen = addressed or ([] if pin is None else alive)
        if named and not selection.members and not selection.inactive:
            yield _selects_nothing(scene, place, selector.text, ports)
        # Rows whose types nobody read prove nothing, unless the pinned one holds no IPv4 address.
        chosen = [port for port in chosen if _is_known(port, pin)]
        members = _members(scene, place, chosen)
        if members:
            yield _by_pin(place, members, pin) if pin is not None else _free(scene, place, members)


def _by_plan(scene: Scene, plan: GidPlan) -> Iterator[Judgement]:
    """What a launch would make of one node."""
    fabric = scene.profile.fabric
    pin = fabric.gid_index if fabric.gid_policy == "pin" else None
    if plan.problem and plan.members and pin is not None:
        index = plan.choice.index if plan.choice else None
        told = f" (here {index})" if index is not None else ""
        yield replace(_by_pin(plan.node, list(plan.members), pin), fix=_RESOLVE + told)
    elif plan.problem:
        ports = f"NCCL_IB_HCA={plan.selector}" if plan.selector else "all active RDMA ports"
        yield Judgement(
            plan.node,
            "unknown" if plan.is_unread else "fail",
            observed=plan.told,
            expected=f"one RoCE v2 index with an IPv4 address of this node on {ports}",
            fix=plan.remedy,
        )
    elif plan.remark:
        yield Judgement(
            plan.node,
            "fail",
            observed=plan.remark,
            expected="no fabric.gid_index, or one that holds on every node",
            why=plan.told,
            fix="--set fabric.gid_index=none (or --set fabric.gid_policy=pin where you mean it)",
            severity="warning",
        )
    else:
        yield passed(plan.node, "; ".join((plan.told, *plan.member_lines)))


def _is_known(port: RdmaPort, pin: int | None) -> bool:
    rows = [gid for gid in port.gids or () if not gid.is_empty]
    if any(gid.type is not None for gid in rows):
        return not any(g.index == pin and g.type is None and g.ipv4 for g in rows)
    return pin is not None and any(g.index == pin and g.ipv4 is None for g in rows)


def _members(scene: Scene, place: str | None, ports: list[RdmaPort]) -> list[Member]:
    addresses = at(scene, place, Addresses)
    known = addresses.by_interface() if addresses is not None and addresses.listed else None
    return [member(port, None, known) for port in ports]


def _selects_nothing(
    scene: Scene, place: str | None, selector: str, ports: list[RdmaPort]
) -> Judgement:
    usable = [m for m in _members(scene, place, ports) if m.usable]
    there = ", ".join(f"{m.port.name} {as_set(m.usable)}" for m in usable)
    names = ",".join(m.port.device for m in usable)
    return Judgement(
        place,
        "fail",
        observed=f"NCCL_IB_HCA={selector} selects no port here; usable: {there or 'none'}",
        expected="at least one port of this node selected",
        fix=f"name this node's own ports: NCCL_IB_HCA={names}" if names else "",
    )


def _by_pin(place: str | None, members: list[Member], pin: int) -> Judgement:
    bad = [m for m in members if pin not in m.usable]
    if not bad:
        ports = ", ".join(f"{m.port.name} {as_set(m.usable)}" for m in members)
        return passed(place, f"GID index {pin} works: {ports}")
    hole = any(_is_hole(m.port, pin) for m in bad)
    common = common_indexes(members)
    told = f"; here the index would be {min(common)}" if common else ""
    return Judgement(
        place,
        "fail",
        observed="; ".join(f"{_row(m.port, pin)}; usable set is {as_set(m.usable)}" for m in bad),
        expected=f"index {pin} is RoCE v2 with an IPv4 address of the port on every selected port",
        fix=_UNSET + told,
        code="NET_GID_HOLE" if hole else None,
        why="GID tables are rebuilt after interface events, so an index that was right at set-up"
        " becomes a hole"
        if hole
        else "",
    )


def _is_hole(port: RdmaPort, pin: int) -> bool:
    """Whether the row is missing though rows behind it exist."""
    indexes = {gid.index for gid in port.gids or () if not gid.is_empty}
    return pin not in indexes and any(index > pin for index in indexes)


def _row(port: RdmaPort, pin: int) -> str:
    """What stands at one index of a port."""
    row = next((g for g in port.gids or () if g.index == pin and not g.is_empty), None)
    if row is None:
        return f"{port.name}: index {pin} does not exist"
    if row.ipv4 is None:
        kind = "a link-local" if row.gid.startswith("fe8") else "an"
        kind = "a ULA" if row.gid[:2] in ("fc", "fd") else kind
        return f"{port.name}: pinned {pin} is {kind} IPv6 GID ({row.gid})"
    if not row.is_v2:
        return f"{port.name}: pinned {pin} is {row.type or 'of unreadable type'} ({row.ipv4})"
    return f"{port.name}: pinned {pin} is {row.ipv4}, which its network device does not have"


def _free(scene: Scene, place: str | None, members: list[Member]) -> Judgement:
    sets = "; ".join(f"{m.port.name} {as_set(m.usable)}" for m in members)
    empty = [m for m in members if not m.usable]
    if empty:
        names = ", ".join(m.port.name for m in empty)
        netdev = empty[0].port.netdev or "its network device"
        return Judgement(
            place,
            "fail",
            observed=f"no RoCE v2 GID with an IPv4 address on {names}; usable sets: {sets}",
            expected="a RoCE v2 row for an IPv4 address of the port",
            fix=f"give {netdev} its IPv4 address; the GID follows",
        )
    if common_indexes(members):
        return passed(place, f"usable GID indexes: {sets}")
    # With nothing pinned and nothing named NCCL picks per device, which this does not hinder.
    free = scene.fleet is not None and not selector_at(scene, place).tokens
    return Judgement(
        place,
        "fail",
        observed=f"no index works on all ports: {sets}",
        expected="one index for all selected ports",
        fix=_UNSET + ", or name only ports with a common index in NCCL_IB_HCA",
        severity="warning" if free else None,
    )


CHECKS: tuple[Check, ...] = (
    Check(
        "RING.ROCE_GID",
        "NET_GID_PER_NODE",
        "GID index is usable",
        ("doctor", "launch", "profile"),
        "error",
        "hardware",
        (Rdma,),
        _judge,
        why="the RoCE v2 row of a port's IPv4 address has another index on every node and moves;"
        " a wrong one ends ncclCommInitRank or hangs the handshake",
        fix=_UNSET,
        symptom="A worker dies in NCCL's start with `invalid usage` or `unhandled system error`, or"
        " the handshake hangs, though links are up and ping works.",
        also=("NET_GID_HOLE",),
    ),
)
