"""Ports of the fast network on each node: RDMA state, twins, MTU, carrier, speed, PCIe."""

from __future__ import annotations

from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_view import (
    at,
    has_fabric,
    is_alone,
    is_fabric,
    node_at,
    selector_at,
)
from sparkserve.checks.scene import Scene
from sparkserve.engine.gid import Selector
from sparkserve.facts.fabric_names import device_of, fabric_name, is_twin, netdev_of
from sparkserve.facts.links import Link, Links, PciSlots
from sparkserve.facts.rdma import Rdma
from sparkserve.facts.routes import Addresses
from sparkserve.model.rdma import RdmaPort

RDMA_MTU = 4096
"""Largest RoCE MTU; case NET_ACTIVE_MTU_LOW."""
LEAST_MTU_BYTES = 4200
"""Smallest MTU of a network device that gives RoCE its 4096; case NET_ACTIVE_MTU_LOW."""
JUMBO_MTU_BYTES = 9000
LINK_SPEED_MBPS = 200_000
PCIE_WIDTH, PCIE_GTPS = 4, 32.0


def _hca(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    for place, rdma in _ports_by_place(scene):
        selector = selector_at(scene, place)
        known = [port for port in rdma.ports if port.is_up is not None]
        if selector.tokens and not selector.excludes:
            yield from _named_ports(place, rdma, selector)
        elif known and any(port.is_up for port in known):
            yield passed(place, f"active: {_names([p for p in known if p.is_up])}")
        elif known and rdma.listed and has_fabric(scene):
            yield Judgement(
                place,
                "fail",
                observed=f"no RDMA port is up: {_names(known)} are down",
                expected="at least one active port",
                fix="plug the cable in, then: ibdev2netdev",
            )


def _ports_by_place(scene: Scene) -> list[tuple[str | None, Rdma]]:
    """RDMA ports of every place; where only links were read, those that belong to them by name."""
    found = scene.each(Rdma)
    seen = {place for place, _ in found}
    for place, links in scene.each(Links):
        ports = [
            RdmaPort(
                device=device, netdev=link.name, state="ACTIVE" if link.has_carrier else "DOWN"
            )
            for link in links.links
            if link.has_carrier is not None and (device := device_of(link.name)) is not None
        ]
        if ports and not any(place == p or scene.same_place(place, p) for p in seen):
            found.append((place, Rdma(ports=tuple(ports))))
    return found


def _names(ports: list[RdmaPort]) -> str:
    return ", ".join(port.name for port in ports)


def _named_ports(place: str | None, rdma: Rdma, selector: Selector) -> Iterator[Judgement]:
    """Every name of the selector must select a port that is up; a prefix may select others too."""
    fine = []
    up = [port for port in rdma.ports if port.is_up]
    for token in selector.tokens:
        one = Selector(selector.text, exact=selector.exact, tokens=(token,))
        ports = [port for port in rdma.ports if one.selects(port)]
        name = token.name.decode(errors="replace")
        if any(port.is_up is not False for port in ports):
            fine += [port for port in ports if port.is_up]
        elif ports or rdma.listed:
            states = ", ".join(f"{port.name} is {_down(port)}" for port in ports)
            instead = _instead(up, ports)
            yield Judgement(
                place,
                "fail",
                observed=states or f"there is no RDMA device {name}",
                expected=f"{name} ACTIVE",
                fix=(
                    f"use the port that is up here: {instead}"
                    if instead
                    else f"plug the cable of {name} in: no RDMA port is up on this node"
                ),
            )
    if fine:
        yield passed(place, f"active: {_names(list(dict.fromkeys(fine)))}")


def _down(port: RdmaPort) -> str:
    state = "Down" if port.state == "DOWN" else str(port.state)
    netdev = port.netdev or netdev_of(port.device)
    return f"{state} ({netdev})" if netdev else state


def _instead(up: list[RdmaPort], down: list[RdmaPort]) -> str:
    """The active port to use instead as HCA/netdev: of the same PCIe half where there is one."""
    halves = {parts.domain for port in down if (parts := fabric_name(port.device))} or {0}
    same = [p for p in up if (parts := fabric_name(p.device)) and parts.domain in halves]
    ports = [p for p in same or up if p not in down]
    return ", ".join(f"{p.name}/{p.netdev or netdev_of(p.device) or '?'}" for p in ports)


def _twins(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene) or scene.wanted.single_rail:
        return
    for place, rdma in _ports_by_place(scene):
        selector = selector_at(scene, place)
        if not selector.tokens:
            continue
        used = [port for port in rdma.ports if port.is_up and selector.selects(port)]
        spare = [port for port in rdma.ports if port.is_up and not selector.selects(port)]
        unused = [p for p in spare if any(_are_twins(p, other) for other in used)]
        if unused:
            names = ",".join(port.device for port in (*used, *unused))
            yield Judgement(
                place,
                "fail",
                observed=f"twin {_names(unused)} is Up and unused; NCCL uses {_names(used)}",
                expected="both halves of a used cage in NCCL_IB_HCA",
                fix=f"NCCL_IB_HCA={names} with NCCL_IB_MERGE_NICS=1, address and MTU on both"
                " network devices; single_rail where one half is meant",
            )
        elif any(_are_twins(one, other) for one in used for other in used):
            yield passed(place, f"both halves listed: {_names(used)}")


def _are_twins(one: RdmaPort, other: RdmaPort) -> bool:
    netdevs = one.netdev, other.netdev
    by_netdev = netdevs[0] is not None and netdevs[1] is not None and is_twin(*map(str, netdevs))
    return is_twin(one.device, other.device) or by_netdev


def _link_of(scene: Scene, place: str | None, port: RdmaPort) -> Link | None:
    links = at(scene, place, Links)
    return links.named(port.netdev or netdev_of(port.device)) if links else None


def _mtu(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    places = dict.fromkeys(p for kind in (Rdma, Links) for p, _ in scene.each(kind))
    for place in places:
        bad: dict[str, str] = {}
        fine = []
        rdma = at(scene, place, Rdma) or Rdma()
        for port in rdma.ports:
            if port.active_mtu is None or port.is_up is False:
                continue
            link = _link_of(scene, place, port)
            netdev = port.netdev or netdev_of(port.device) or f"<netdev of {port.device}>"
            below = f" (netdev {link.mtu_bytes})" if link and link.mtu_bytes else ""
            if port.active_mtu < RDMA_MTU and (port.max_mtu or RDMA_MTU) >= RDMA_MTU:
                bad[netdev] = f"{port.name} active_mtu {port.active_mtu}{below}"
            else:
                fine.append(f"{port.name} {port.active_mtu}")
        for link in _carrying(scene, place):
            if link.mtu_bytes is not None and link.mtu_bytes < LEAST_MTU_BYTES:
                bad.setdefault(link.name, f"{link.name} MTU {link.mtu_bytes}")
            elif link.mtu_bytes is not None:
                fine.append(f"{link.name} {link.mtu_bytes}")
        if bad:
            commands = "; ".join(f"sudo ip link set {n} mtu {JUMBO_MTU_BYTES}" for n in bad)
            yield Judgement(
                place,
                "fail",
                observed="; ".join(bad.values()),
                expected=f"active_mtu {RDMA_MTU}, network device {JUMBO_MTU_BYTES}",
                fix=f"{commands} (both ends and the switch)",
            )
        elif fine:
            yield passed(place, f"MTU {', '.join(fine)}")


def _carrying(scene: Scene, place: str | None) -> list[Link]:
    """Links of the fabric that have carrier, and an address where addresses are known."""
    links, addresses = at(scene, place, Links), at(scene, place, Addresses)
    if links is None or not any(p == place for p, _ in scene.each(Links)):
        return []
    return [
        link
        for link in links.links
        if link.has_carrier is not False
        and is_fabric(scene, place, link.name)
        and (addresses is None or not addresses.listed or addresses.ipv4_of(link.name))
    ]


def _carrier(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    for place, links in scene.each(Links):
        named = {scene.wanted.fabric_interface, scene.wanted.socket_interface}
        if (node := node_at(scene, place)) is not None:
            named |= {node.interface}
            addresses = at(scene, place, Addresses)
            if addresses and node.fabric_address:
                named |= {addresses.holder(node.fabric_address)}
        down = [
            link
            for link in links.links
            if link.has_carrier is False
            and is_fabric(scene, place, link.name)
            and (link.name in named or _is_addressed(scene, place, link.name))
        ]
        if down:
            meant = any(link.name in named for link in down)
            first = down[0].name
            yield Judgement(
                place,
                "fail",
                observed=f"{', '.join(link.name for link in down)} has no carrier",
                expected="up",
                fix=f"sudo ip link set {first} up; then check the cable of {first} at both ends",
                severity=None if meant else "warning",
            )
        else:
            up = [link.name for link in links.links if link.has_carrier]
            known = [name for name in up if is_fabric(scene, place, name)]
            if known:
                yield passed(place, f"up: {', '.join(known)}")


def _is_addressed(scene: Scene, place: str | None, name: str) -> bool:
    addresses = at(scene, place, Addresses)
    return addresses is not None and bool(addresses.ipv4_of(name))


def _speed(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    for place, _ in scene.each(Links):
        rated = [link for link in _carrying(scene, place) if link.speed_mbps is not None]
        slow = [link for link in rated if (link.speed_mbps or 0) < LINK_SPEED_MBPS]
        if slow:
            yield Judgement(
                place,
                "fail",
                observed=", ".join(f"{link.name} {link.speed_mbps} Mb/s" for link in slow),
                expected=f"{LINK_SPEED_MBPS} Mb/s",
                fix=f"reseat or change the cable of {slow[0].name} (it must be rated for 200 Gb/s);"
                f" then: ethtool {slow[0].name}",
            )
        elif rated:
            yield passed(place, ", ".join(f"{link.name} {link.speed_mbps} Mb/s" for link in rated))


def _pcie(scene: Scene) -> Iterator[Judgement]:
    places = dict.fromkeys(p for kind in (Links, PciSlots) for p, _ in scene.each(kind))
    for place in places:
        found = [
            (link.name, link.pcie_width, link.pcie_speed_gtps)
            for link in _carrying(scene, place)
            if (link.pcie_width, link.pcie_speed_gtps) != (None, None)
        ]
        slots = at(scene, place, PciSlots)
        # The two halves of a Spark's ConnectX-7 sit on bus 01 of two domains.
        found += [
            (slot.address or "the adapter", slot.width, slot.speed_gtps)
            for slot in (slots.slots if slots else ())
            if slot.address is not None and slot.address.split(":")[-2] == "01"
        ]
        bad = [
            f"{name} x{width or '?'} at {speed or '?'} GT/s"
            for name, width, speed in found
            if (width is not None and width < PCIE_WIDTH)
            or (speed is not None and speed < PCIE_GTPS)
        ]
        if bad:
            yield Judgement(
                place,
                "fail",
                observed=", ".join(bad),
                expected=f"x{PCIE_WIDTH} at {PCIE_GTPS:g} GT/s on both halves",
            )
        elif found:
            yield passed(place, ", ".join(f"{n} x{w or '?'} {s or '?'} GT/s" for n, w, s in found))


def _layer(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    for place, rdma in scene.each(Rdma):
        told = [port for port in rdma.ports if port.link_layer is not None and port.is_up]
        wrong = [port for port in told if port.link_layer != "Ethernet"]
        if wrong:
            yield Judgement(
                place,
                "fail",
                observed=", ".join(f"{p.name} link layer {p.link_layer}" for p in wrong),
                expected="Ethernet",
            )
        elif told:
            yield passed(place, f"Ethernet: {_names(told)}")


CHECKS: tuple[Check, ...] = (
    Check(
        "RING.RDMA_PORT_ACTIVE", "NET_HCA_DOWN", "RDMA ports are up", ("doctor", "launch"),
        "error", "hardware", (Rdma,), _hca,
        why="NCCL is told to use a port without a cable; which cage is cabled differs from node to"
        " node",
        fix="name the ports that are up on this node: ibdev2netdev",
        symptom="NCCL does not start on one of several nodes that look alike; the named port says"
        " PORT_DOWN.",
    ),
    Check(
        "HCA.TWINS", "NET_TWIN_UNUSED", "both halves of a cage are used", ("doctor",),
        "warning", "hardware", (Rdma,), _twins,
        why="one cage is two PCIe x4 controllers with an RDMA device each, and NCCL uses only those"
        " it is told: half of the link stays idle",
        fix="list both halves in NCCL_IB_HCA",
        symptom="Everything works at about half the speed of the port, or all_gather_perf stays"
        " near 3 GB/s at every size.",
    ),
    Check(
        "RING.MTU", "NET_ACTIVE_MTU_LOW", "MTU is large enough for RoCE", ("doctor",),
        "warning", "hardware", (Rdma, Links), _mtu,
        why="RoCE takes the largest power of two below the network device's MTU: 1500 leaves 1024",
        fix="set MTU 9000 on both halves, both ends and the switch",
        symptom="Prefill is slower than published figures and no error is shown anywhere.",
    ),
    Check(
        "RING.LINK_UP", "NET_LINK_DOWN", "fabric interfaces have carrier", ("doctor", "launch"),
        "error", "hardware", (Links,), _carrier,
        why="an interface that is down carries nothing, though it may still show its address",
        fix="check the cable at both ends",
        symptom="A node cannot be reached over the fabric; ranks wait in the rendezvous.",
    ),
    Check(
        "RING.LINK_SPEED", "NET_LINK_SLOW", "fabric links run at full speed", ("doctor", "launch"),
        "error", "hardware", (Links,), _speed,
        why="the port agreed on less than it can, mostly because of the cable",
        fix="reseat or change the cable",
        symptom="Everything works, but all traffic between two nodes is slow.",
    ),
    Check(
        "PCIE.WIDTH", "NET_PCIE_NARROW", "the adapter has its full PCIe link", ("doctor",),
        "error", "hardware", (Links,), _pcie,
        why="a half of the adapter came up with fewer lanes or a lower rate, as with early firmware"
        " of the board",
        fix="update the system firmware, then cold power cycle; read current_link_width again",
        symptom="The link says 200 Gb/s, but much less arrives.",
    ),
    Check(
        "RING.RDMA_LINK_LAYER", "NET_RDMA_LINK_LAYER", "RDMA ports run over Ethernet", ("doctor",),
        "error", "hardware", (Rdma,), _layer,
        why="the adapter is set to InfiniBand, so its ports have no RoCE addresses",
        fix="sudo mlxconfig -d <device> set LINK_TYPE_P1=2, then reboot",
        symptom="Ports are up, but there is no IPv4 GID and no network device.",
    ),
)  # fmt: skip
