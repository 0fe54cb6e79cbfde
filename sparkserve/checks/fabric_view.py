"""What the checks of the fast network have in common: the wish for one place, names, topology."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import TypeVar

from sparkserve.checks.scene import Scene, evidence
from sparkserve.engine.gid import Selector, parse_selector
from sparkserve.facts.environment import Environment
from sparkserve.facts.fabric_names import fabric_name
from sparkserve.facts.rdma import Rdma
from sparkserve.facts.reader import Fact
from sparkserve.facts.routes import Addresses
from sparkserve.model.cluster import Node

F = TypeVar("F", bound=Fact)

SOCKET_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def at(scene: Scene, place: str | None, kind: type[F]) -> F | None:
    """What is known about one kind at this place under any of its names, or without a place.

    Unlike ``Scene.near`` it never takes another node's reading.
    """
    known = scene.each(kind)
    if scene.fleet is not None and place in dict(known):
        # A cluster's node has one name.
        return dict(known)[place]
    own = [fact for other, fact in known if other == place or scene.same_place(place, other)]
    if own:
        return reduce(lambda one, other: one.merged(other), own)
    placeless = [fact for other, fact in known if other is None]
    if placeless:
        return placeless[0]
    return known[0][1] if place is None and len(known) == 1 else None


def rests_on(scene: Scene, place: str | None, *kinds: type[Fact]) -> tuple[str, ...]:
    """Names of the readings of some kinds at one place; for findings that rest on several."""
    shown = [
        one.reading
        for one in scene.observations
        if one.kind in kinds and (one.place == place or scene.same_place(one.place, place))
    ]
    return tuple(dict.fromkeys(evidence(shown)))


def variables_at(scene: Scene, place: str | None) -> dict[str, str]:
    """Variables of the run at one place; what an image bakes in is not among them."""
    own: dict[str, str] = {}
    for other, environment, _ in scene.seen(Environment):
        if environment.origin == "image":
            continue
        if other is None or other == place or scene.same_place(place, other):
            own |= environment.variables
    return own


def selector_at(scene: Scene, place: str | None) -> Selector:
    """Which RDMA ports NCCL is told to use at one place; without names none was told."""
    told = variables_at(scene, place).get("NCCL_IB_HCA", "").strip()
    return parse_selector(told or (scene.wanted.hca or "").replace(" ", ""))


def pin_at(scene: Scene, place: str | None) -> int | None:
    """The GID index that one place is told to use; None = NCCL chooses."""
    told = variables_at(scene, place).get("NCCL_IB_GID_INDEX", "").strip()
    return int(told) if re.fullmatch(r"\d{1,3}", told) else scene.wanted.gid_index


def is_alone(scene: Scene) -> bool:
    """Whether only one node serves, so that nothing of the fabric matters."""
    if scene.fleet is not None:
        return len(scene.fleet.nodes) == 1
    return scene.wanted.nodes == 1 or scene.wanted.topology == "solo"


def has_fabric(scene: Scene) -> bool:
    """Whether several nodes are known to belong together, or RDMA ports are named."""
    wanted = scene.wanted
    several = len(scene.fleet.nodes) > 1 if scene.fleet else (wanted.nodes or 0) > 1
    return several or wanted.hca is not None or wanted.gid_index is not None


def topology(scene: Scene) -> str | None:
    """How the fast network is wired, where somebody says it."""
    told = scene.fleet.topology if scene.fleet else scene.wanted.topology
    return None if told is None else str(told).lower()


def node_at(scene: Scene, place: str | None) -> Node | None:
    """The cluster's own entry for a place."""
    nodes = scene.fleet.nodes if scene.fleet else ()
    return next((node for node in nodes if node.name == place), None)


def fabric_interfaces(scene: Scene, place: str | None) -> set[str]:
    """Network devices that are known to belong to the fast network at one place."""
    found = set()
    if rdma := at(scene, place, Rdma):
        found |= {port.netdev for port in rdma.ports if port.netdev}
    if (node := node_at(scene, place)) is not None:
        addresses = at(scene, place, Addresses)
        holder = (
            addresses.holder(node.fabric_address) if addresses and node.fabric_address else None
        )
        found |= {name for name in (node.interface, holder) if name}
    found |= {name for name in (scene.wanted.fabric_interface,) if name}
    return found


def is_fabric(scene: Scene, place: str | None, name: str) -> bool:
    """Whether a network device belongs to the fast network, by its name or by what is known."""
    return fabric_name(name) is not None or name in fabric_interfaces(scene, place)


def socket_names(scene: Scene, place: str | None) -> Iterator[tuple[str, str, list[str]]]:
    """(variable, its value, the names in it) of every socket variable of one place.

    NCCL's ``^`` (all but these) names nothing that must exist; its ``=`` is no part of a name.
    """
    variables = variables_at(scene, place)
    for variable in SOCKET_NAMES:
        value = variables.get(variable, "").strip()
        if value and not value.startswith("^"):
            names = [name.strip() for name in value.lstrip("=").split(",")]
            yield variable, value, [name for name in names if name]
