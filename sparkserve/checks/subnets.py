"""Addresses of the fast network: subnets, interface names, the address that a rank advertises."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_view import at, is_alone, node_at, socket_names, variables_at
from sparkserve.checks.scene import Scene
from sparkserve.facts.environment import Environment
from sparkserve.facts.fabric_names import fabric_name
from sparkserve.facts.links import Links
from sparkserve.facts.routes import Addresses, Routes


def _subnets(scene: Scene) -> Iterator[Judgement]:
    for place, known in scene.each(Addresses):
        by_network: dict[str, dict[str, str]] = {}
        for one in known.addresses:
            if one.is_ipv4 and fabric_name(one.interface) is not None:
                by_network.setdefault(one.network, {})[one.interface] = one.address
        shared = {network: held for network, held in by_network.items() if len(held) > 1}
        for network, held in shared.items():
            yield _shared(place, network, held)
        if by_network and not shared:
            yield passed(place, f"one network per interface: {', '.join(by_network)}")


def _shared(place: str | None, network: str, held: dict[str, str]) -> Judgement:
    cages = sorted({parts.cage for name in held if (parts := fabric_name(name))})
    names = " and ".join(f"{name} ({address})" for name, address in held.items())
    if len(cages) == 1:
        return Judgement(
            place,
            "fail",
            observed=f"twins of cage {cages[0]} share {network}: {names}",
            expected="one network per half, if you can",
            why="the kernel sends through one of them only; harmless for two halves of one cable",
            fix=f"give {list(held)[-1]} an address in a network of its own, or leave it so",
            severity="warning",
        )
    return Judgement(
        place,
        "fail",
        observed=f"cages {' and '.join(map(str, cages))} share {network}: {names}",
        expected="one network per cage",
        fix=f"give {list(held)[-1]} an address in a network of its own",
    )


def _names(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    for place, known in scene.each(Addresses):
        if not known.listed:
            continue
        problems, variables, fine = [], [], []
        for variable, value, names in socket_names(scene, place):
            lost = _without_address(scene, known, variable, value, names)
            if lost:
                variables.append(variable)
                problems += [f"{variable} names {name}: {why}" for name, why in lost.items()]
            else:
                fine.append(f"{variable}={value}")
        for name in _wanted_names(scene, place):
            if not known.ipv4_of(name):
                problems.append(f"the profile names {name}: no IPv4 address")
            else:
                fine.append(name)
        if problems:
            yield _unaddressed(scene, place, known, problems, variables)
        elif fine:
            yield passed(place, ", ".join(fine))


def _without_address(
    scene: Scene, known: Addresses, variable: str, value: str, names: list[str]
) -> dict[str, str]:
    """Names that no interface with a fitting IPv4 address has, each with what is wrong.

    NCCL takes names as prefixes unless ``=`` stands before them, and needs one that fits; the
    others take whole names and need every one.
    """
    interfaces = known.by_interface()
    lost = {}
    is_nccl = variable.startswith("NCCL")
    for name in names:
        prefix = is_nccl and not value.startswith("=")
        found = [i for i in interfaces if i == name or (prefix and i.startswith(name))]
        held = [address for i in found for address in interfaces[i]]
        inside = [a for a in held if _is_inside(a, scene.wanted.fabric_subnet)]
        if not held:
            lost[name] = "no IPv4 address on this node"
        elif not inside:
            lost[name] = f"{', '.join(held)} is outside {scene.wanted.fabric_subnet}"
    return {} if is_nccl and len(lost) < len(names) else lost


def _is_inside(address: str, subnet: str | None) -> bool:
    if subnet is None:
        return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(subnet, strict=False)
    except ValueError:
        return True


def _wanted_names(scene: Scene, place: str | None) -> list[str]:
    told = [scene.wanted.fabric_interface, scene.wanted.socket_interface]
    if (node := node_at(scene, place)) is not None:
        told = [node.interface]
    names = [name.lstrip("=") for one in told if one for name in one.split(",")]
    return list(dict.fromkeys(name for name in names if name and not name.startswith("^")))


def _unaddressed(
    scene: Scene, place: str | None, known: Addresses, problems: list[str], variables: list[str]
) -> Judgement:
    fast = [i for i in known.by_interface() if fabric_name(i) and known.ipv4_of(i)]
    there = ", ".join(
        f"{i} {held[0]}" for i, held in known.by_interface().items() if held and i != "lo"
    )
    fix = f"on this node use an interface that has an address: {there}"
    if fast and variables:
        fix = " ".join(f"{variable}={fast[0]}" for variable in variables) + " on this node"
    return Judgement(
        place,
        "fail",
        observed="; ".join(problems),
        expected="every named interface has an IPv4 address in the fabric",
        fix=fix,
    )


def _host_ip(scene: Scene) -> Iterator[Judgement]:
    if is_alone(scene):
        return
    places = [p for p, env, _ in scene.seen(Environment) if env.origin != "image"]
    for place in dict.fromkeys(places):
        variables = variables_at(scene, place)
        names = [name for _, _, found in socket_names(scene, place) for name in found]
        if not names or "VLLM_HOST_IP" in variables:
            continue
        told = variables.get("SGLANG_HOST_IP", "").strip() or variables.get("HOST_IP", "").strip()
        yield from _advertised(scene, place, told, names)


def _advertised(
    scene: Scene, place: str | None, told: str, names: list[str]
) -> Iterator[Judgement]:
    known, routes = at(scene, place, Addresses), at(scene, place, Routes)
    own = [a for name in names for a in (known.ipv4_of(name) if known else ())]
    address = own[0] if own else f"<address of {names[0]} here>"
    way = routes.way_out() if routes else None
    fix = f"SGLANG_HOST_IP={address} for this rank, beside NCCL_ and GLOO_SOCKET_IFNAME"
    if told:
        holder = known.holder(told) if known else None
        if not _is_inside(told, scene.wanted.fabric_subnet):
            wrong = f"is outside {scene.wanted.fabric_subnet}"
        elif known is not None and known.listed and holder is None:
            wrong = "is no address of this node"
        elif holder is not None and holder.startswith("wl"):
            wrong = f"is the address of {holder}, a Wi-Fi interface"
        elif way is not None and way.source == told and way.interface not in names:
            wrong = f"is the address of {way.interface}, by which the default route leaves"
        elif holder is not None and own and holder not in names and not fabric_name(holder):
            wrong = f"is the address of {holder}, not of {names[0]}"
        else:
            yield passed(place, f"SGLANG_HOST_IP={told}")
            return
        observed = f"SGLANG_HOST_IP={told} {wrong}"
    elif way is None or way.interface is None:
        return
    elif way.interface in names or (
        scene.wanted.fabric_subnet
        and way.source
        and _is_inside(way.source, scene.wanted.fabric_subnet)
    ):
        yield passed(place, f"the default route leaves by {way.interface}, as the ranks do")
        return
    else:
        source = f" with {way.source}" if way.source else ""
        observed = f"SGLANG_HOST_IP unset; the default route leaves by {way.interface}{source}"
    yield Judgement(
        place,
        "fail",
        observed=observed,
        expected=f"SGLANG_HOST_IP = this node's address on {names[0]}",
        fix=fix,
    )


def _own_addresses(scene: Scene) -> Iterator[Judgement]:
    for node in scene.fleet.nodes if scene.fleet else ():
        known = scene.of(node.name, Addresses)
        if known is None or not known.listed or is_alone(scene):
            continue
        told = node.fabric_address
        if told is None or not _is_address(told):
            continue
        holder = known.holder(told)
        if holder is None:
            yield Judgement(
                node.name,
                "fail",
                observed=f"no interface has {told}",
                expected=f"{told} on {node.interface or 'a fabric interface'}",
                fix=f"sudo ip addr add {told}/24 dev {node.interface or '<fabric interface>'}, or"
                " mend fabric_address in the cluster file",
            )
        elif node.interface is not None and holder != node.interface:
            yield Judgement(
                node.name,
                "fail",
                observed=f"{told} is on {holder}",
                expected=f"{told} on {node.interface}",
                fix="mend interface or fabric_address in the cluster file",
            )
        else:
            yield passed(node.name, f"{told} on {holder}")


def _rendezvous(scene: Scene) -> Iterator[Judgement]:
    """Ways to the fabric addresses of other nodes, as far as the kernel was asked for them."""
    if is_alone(scene):
        return
    peers = {n.fabric_address: n.name for n in (scene.fleet.nodes if scene.fleet else ())}
    for place, routes in scene.each(Routes):
        node = node_at(scene, place)
        known = scene.of(place, Addresses)
        if node is None or known is None or node.fabric_address is None:
            continue
        own = known.holder(node.fabric_address)
        links = scene.of(place, Links)
        link = links.named(own) if links else None
        if own is None or (link is not None and link.has_carrier is False):
            # Without address or carrier there is no way either; that is told by its own check.
            continue
        answers = {r.destination: r for r in routes.routes if r.is_answer}
        wrong = [f"no way to {peers[a]} ({a})" for a in routes.unreachable if a in peers]
        asked = [answers[a] for a in peers if a in answers]
        for route in asked:
            if route.interface not in (own, "lo") and fabric_name(route.interface or "") is None:
                target = f"{peers[route.destination]} ({route.destination})"
                wrong.append(f"the way to {target} leaves by {route.interface}")
        if wrong:
            yield Judgement(
                place,
                "fail",
                observed="; ".join(wrong),
                expected=f"by {own}",
                fix=f"give {own} the mask of the fabric network (it has {node.fabric_address});"
                " then: ip -4 route get <peer>",
            )
        elif asked:
            yield passed(place, f"fabric addresses of {len(asked)} nodes by {own}")


def _management(scene: Scene) -> Iterator[Judgement]:
    for node in scene.fleet.nodes if scene.fleet else ():
        known = scene.of(node.name, Addresses)
        if known is None or not known.listed or not _is_address(node.host):
            continue
        holders = [a.interface for a in known.addresses if a.address == node.host]
        if len(holders) == 1:
            yield passed(node.name, f"{node.host} on {holders[0]}")
        else:
            # Behind address translation the SSH address is not the node's own.
            yield Judgement(
                node.name,
                "fail",
                observed=f"{node.host} is on {', '.join(holders) or 'no interface'}",
                expected="the address on exactly one interface",
                fix="mend host in the cluster file, unless SSH reaches the node through a gateway",
                severity="warning",
            )


def _is_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False


CHECKS: tuple[Check, ...] = (
    Check(
        "NET.SUBNETS", "NET_SAME_SUBNET", "every cage has its own network", ("doctor",),
        "error", "hardware", (Addresses,), _subnets,
        why="with two ports in one network the kernel answers through one of them, whichever way"
        " the question came",
        fix="one network per cage",
        symptom="RDMA between some pairs of nodes times out, because answers leave through the"
        " wrong port.",
    ),
    Check(
        "NET.IFNAME", "NET_IFNAME_ABSENT", "named socket interfaces exist", ("doctor", "launch"),
        "error", "config", (Addresses,), _names,
        why="one name was set for all nodes or copied from an example, and this node's port has"
        " another one",
        fix="derive the names on each node from its fabric address",
        symptom="`Unable to find address for: <interface>` from gloo at the start of a rank.",
    ),
    Check(
        "NET.HOST_IP", "NET_SGLANG_HOST_IP", "ranks advertise a fabric address",
        ("doctor", "profile", "launch"), "error", "config", (Routes, Environment), _host_ip,
        why="SGLang's message queue between nodes advertises the address of the default route"
        " unless it is told one; over Wi-Fi or the office network its peers cannot reach it",
        fix="set SGLANG_HOST_IP per node to its fabric address",
        symptom="All ranks print that CustomAllreduce is disabled, then nothing more, at 1 % CPU.",
        text_only="sparkserve's own launch sets the address for every rank; these are the variables"
        " of other launchers",
    ),
    Check(
        "RING.ADDRESS", "NET_ADDRESS_MISSING", "fabric addresses are held", ("doctor", "launch"),
        "error", "hardware", (Addresses,), _own_addresses,
        why="the address of the cluster file is not on the interface, so ranks cannot meet on it",
        fix="give the interface its address",
        symptom="Ranks wait in the rendezvous, or a bind fails with `Cannot assign requested"
        " address`.",
    ),
    Check(
        "RING.ROUTE", "NET_RENDEZVOUS_ROUTE", "ways to the others lead over the fabric",
        ("doctor", "launch"), "error", "hardware", (Routes,), _rendezvous,
        why="ranks would meet over the management network or Wi-Fi, or not at all",
        fix="give the fabric interface its address and mask",
        symptom="The rendezvous times out, or all traffic is as slow as the office network.",
    ),
    Check(
        "MGMT.ADDRESS", "NET_MANAGEMENT_ADDRESS", "management addresses are held", ("doctor",),
        "warning", "config", (Addresses,), _management,
        why="an address on no interface or on two means that the cluster file and the node differ",
        fix="mend host in the cluster file",
        symptom="Commands reach another machine than the one that is meant.",
    ),
)  # fmt: skip
