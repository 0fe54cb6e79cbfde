"""Whether nodes reach each other: firewalls, echoes, names, and an adapter that died."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_view import at, is_alone, rests_on
from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.fabric_names import fabric_name
from sparkserve.facts.firewall import (
    ClientConnections,
    Connection,
    Connections,
    Echo,
    Echoes,
    PacketFilter,
    Ufw,
)
from sparkserve.facts.kernel_log import KernelLog, PreviousKernelLog
from sparkserve.facts.packet_rules import Rule
from sparkserve.facts.routes import Address, Addresses, HostAnswers

SMALL_PAYLOAD_BYTES = 1472
"""Largest echo of an interface with MTU 1500."""


def _firewall(scene: Scene) -> Iterator[Judgement]:
    """Static rules and tried connections of one node are one finding; what was tried decides."""
    if is_alone(scene):
        for place, _ in scene.blind(Ufw):
            yield Judgement(place, "skipped", observed="one node alone has no fabric")
        return
    closed = {place: _closed_by(scene, place) for place in _guarded(scene)}
    tried: dict[str | None, list[Connection]] = {}
    for place, known in scene.each(Connections):
        others = [other for other, how in closed.items() if how is not None and other != place]
        for one in known.tried:
            guilty = _owner(scene, one.address) or known.target
            guilty = guilty or (others[0] if len(others) == 1 else None)
            tried.setdefault(guilty, []).append(one)
    for place in dict.fromkeys([*tried, *closed]):
        tests = tried.get(place, [])
        bad = [one for one in tests if one.result != "ok"]
        static = closed.get(place)
        if not bad and (tests or static is None):
            if tests or place in closed:
                yield passed(place, _tests(tests) or "nothing blocks the fabric")
            continue
        observed = [_tests(tests)] if tests else []
        if bad and len(bad) < len(tests):
            observed.insert(0, "ephemeral ports blocked on the fabric")
        observed += [static] if static else []
        yield Judgement(
            place,
            "fail",
            observed="; ".join(observed),
            expected="every port open from the fabric network",
            fix=_opening(scene, place, bad),
            evidence=(
                *rests_on(scene, place, Ufw, PacketFilter),
                *(evidence([r for _, _, r in scene.seen(Connections)]) if tests else ()),
            ),
        )


def _owner(scene: Scene, address: str) -> str | None:
    """The node that has an address: by its interfaces, else by the cluster file."""
    for place, known in scene.each(Addresses):
        if known.holder(address) is not None:
            return place
    nodes = scene.fleet.nodes if scene.fleet else ()
    return next((n.name for n in nodes if address in (n.host, n.fabric_address)), None)


def _guarded(scene: Scene) -> list[str | None]:
    """Places of which it is known what may come in."""
    by_ufw = [place for place, _ in scene.each(Ufw)]
    by_rules = [place for place, rules in scene.each(PacketFilter) if rules.chain("INPUT")]
    return list(dict.fromkeys([*by_ufw, *by_rules]))


def _tests(tests: list[Connection]) -> str:
    by_result: dict[str, list[str]] = {}
    for one in tests:
        by_result.setdefault(one.result, []).append(f"{one.address}:{one.port}")
    return ", ".join(f"{' '.join(ports)} {result}" for result, ports in by_result.items())


def _fabric_addresses(scene: Scene, place: str | None) -> list[Address]:
    known = at(scene, place, Addresses)
    addresses = known.addresses if known else ()
    return [a for a in addresses if a.is_ipv4 and fabric_name(a.interface) is not None]


def _closed_by(scene: Scene, place: str | None) -> str | None:
    """How the rules keep the fabric out; None where they let it in or are not known."""
    ufw, own = scene.of(place, Ufw), _fabric_addresses(scene, place)
    if ufw is not None and ufw.is_active:
        if ufw.default_incoming == "allow":
            return None
        for rule in ufw.rules:
            source = rule.source.split()[0]
            fits = not own or source == "Anywhere" or any(_inside(a.address, source) for a in own)
            fits = fits and (rule.interface is None or _is_own(rule.interface, own))
            if rule.is_open and fits:
                return None
        return f"ufw is active, default {ufw.default_incoming or 'deny'} (incoming)," + (
            " and no rule opens the fabric"
        )
    rules = scene.of(place, PacketFilter)
    chain = rules.chain("INPUT") if rules else None
    if rules is None or chain is None or chain.policy not in ("DROP", "REJECT"):
        return None
    if scene.fleet is not None and not own:
        return None
    every = [rule for chain in rules.chains for rule in chain.rules if rule.target == "ACCEPT"]
    if any(_lets_in(rule, address) for rule in every for address in own):
        return None
    if not own and any(_is_wide(rule) for rule in every):
        return None
    return f"INPUT has policy {chain.policy} and no rule opens the fabric"


def _is_own(interface: str, own: list[Address]) -> bool:
    return not own or any(address.interface == interface for address in own)


def _lets_in(rule: Rule, address: Address) -> bool:
    if rule.is_narrow or rule.outgoing is not None:
        return False
    if rule.incoming not in (None, "*", address.interface):
        return False
    return rule.source is None or _inside(address.address, rule.source)


def _is_wide(rule: Rule) -> bool:
    """Whether it lets a whole interface or network in; for places of unknown addresses."""
    return not rule.is_narrow and rule.outgoing is None and rule.incoming != "lo"


def _inside(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _opening(scene: Scene, place: str | None, bad: list[Connection]) -> str:
    own = _fabric_addresses(scene, place)
    hit = [a for a in own if any(a.address == one.address for one in bad)] or own
    ufw = scene.of(place, Ufw)
    if ufw is None and scene.of(place, PacketFilter) is not None:
        way = f"-i {hit[0].interface} -s {hit[0].network}" if hit else "-i <fabric interface>"
        return f"sudo iptables -I INPUT {way} -j ACCEPT"
    if hit:
        return f"sudo ufw allow in on {hit[0].interface} from {hit[0].network}"
    sources = [rule.source for rule in ufw.rules if "/" in rule.source] if ufw else []
    source = sources[0] if sources else "<fabric network>"
    return f"sudo ufw allow in on <fabric interface> from {source}"


def _is_fabric_echo(scene: Scene, echo: Echo) -> bool:
    nodes = scene.fleet.nodes if scene.fleet else ()
    if any(node.fabric_address == echo.address for node in nodes):
        return True
    return (echo.payload_bytes or 0) > SMALL_PAYLOAD_BYTES


def _echoes(scene: Scene, *, fabric: bool) -> Iterator[Judgement]:
    """One finding per silent node where nobody reaches it, else per node that cannot reach it."""
    by_target: dict[str, list[tuple[str | None, Echo]]] = {}
    for place, known in scene.each(Echoes):
        for echo in known.echoes:
            if _is_fabric_echo(scene, echo) == fabric:
                by_target.setdefault(echo.address, []).append((place, echo))
    fine: dict[str | None, list[str]] = {}
    for address, seen in by_target.items():
        owner = _owner(scene, address)
        silent = [(place, echo) for place, echo in seen if echo.received == 0]
        if len(silent) == len(seen) > 1 and owner is not None:
            froms = ", ".join(str(place) for place, _ in silent)
            yield _silence(owner, silent[0][1], f"no node reaches {owner} ({froms})", address)
            continue
        for place, echo in silent:
            yield _silence(place, echo, f"no answer from {owner or address}", address)
        for place, echo in seen:
            if 0 < echo.received < echo.sent:
                yield _loss(place, echo, owner or address)
            elif echo.received:
                fine.setdefault(place, []).append(owner or address)
    for place, names in fine.items():
        yield passed(place, f"answers from {', '.join(names)}")


def _silence(node: str | None, echo: Echo, words: str, address: str) -> Judgement:
    size = echo.payload_bytes or 0
    more = f" to echoes of {size} bytes" if size > SMALL_PAYLOAD_BYTES else ""
    hint = "; a hop says that they are too long" if echo.too_long else ""
    mtu = size + 28
    if size > SMALL_PAYLOAD_BYTES:
        fix = (
            f"ping -c 2 {address}: if short echoes pass, set MTU {mtu} at both ends and the switch"
        )
    else:
        fix = f"check cable, address and firewall on the way: ip -4 route get {address}"
    return Judgement(
        node,
        "fail",
        observed=f"{words}: 0 of {echo.sent} answers{more} at {address}{hint}",
        expected=f"{echo.sent} of {echo.sent}",
        fix=fix,
    )


def _loss(place: str | None, echo: Echo, target: str) -> Judgement:
    return Judgement(
        place,
        "fail",
        observed=f"{echo.sent - echo.received} of {echo.sent} echoes to {target} lost",
        expected="none lost",
        why="packets are lost on the way: a bad cable or connector, or a full queue",
        fix=f"ip -s link; then reseat the cable towards {target} ({echo.address})",
        code="NET_PACKET_LOSS",
        severity="warning",
    )


def _control(scene: Scene) -> Iterator[Judgement]:
    yield from _echoes(scene, fabric=False)


def _jumbo(scene: Scene) -> Iterator[Judgement]:
    if not is_alone(scene):
        yield from _echoes(scene, fabric=True)


def _mdns(scene: Scene) -> Iterator[Judgement]:
    for place, known in scene.each(HostAnswers):
        client = at(scene, place, ClientConnections) or at(scene, place, Connections)
        tried = {str(one.address): one for one in (client.tried if client else ())}
        for name, answers in known.answers.items():
            first = tried.get(answers[0])
            if first is None:
                continue
            others = [tried[a] for a in answers[1:] if a in tried and ":" not in a]
            ways = [one for one in others if one.result == "ok"]
            if ":" in answers[0] and first.result != "ok" and ways:
                waited = f" after {first.elapsed_s:g} s" if first.elapsed_s is not None else ""
                took = f" in {ways[0].elapsed_s:g} s" if ways[0].elapsed_s is not None else ""
                yield Judgement(
                    place,
                    "fail",
                    observed=f"{name} is IPv6 first and dead: {answers[0]} {first.result}{waited};"
                    f" {ways[0].address} connects{took}",
                    expected="the first address of a name connects",
                    fix=f"use http://{ways[0].address}:{ways[0].port} as the endpoint",
                )
            elif first.result == "ok":
                yield passed(place, f"{name}: {answers[0]} connects")


_FATAL = re.compile(
    r"AER: .*Uncorrect\w+ \(Fatal\)|severity=Uncorrect\w+ \(Fatal\)|mlx5_pci_slot_reset"
    r"|soft lockup .*aerdrv"
)
_PCI = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d"


def _aer(scene: Scene) -> Iterator[Judgement]:
    for place, log in scene.each(KernelLog):
        if (found := _fatal(log.lines)) is not None:
            yield Judgement(
                place, "fail", observed=found[0], expected="no fatal PCIe error", evidence=found[1]
            )
        elif log.lines:
            yield passed(place, "no fatal PCIe error")
    for place, before in scene.each(PreviousKernelLog):
        if (found := _fatal(before.lines)) is not None:
            now = scene.near(place, KernelLog)
            mended = now is not None and bool(now.lines) and _fatal(now.lines) is None
            yield Judgement(
                place,
                "fail",
                observed=f"before the last reboot: {found[0]}",
                expected="no fatal PCIe error",
                fix="the reboot has mended it for now; update the adapter's firmware and look for"
                " a hardware fault if it comes again"
                if mended
                else "look whether it came again (journalctl -k | grep AER); then update the"
                " adapter's firmware, and look for a hardware fault",
                evidence=found[1],
                # Only a kernel log of this boot shows that the node is well again.
                severity="warning" if mended else None,
            )


def _fatal(lines: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """The first fatal line in words, and the lines that show it."""
    hits = [line for line in lines if _FATAL.search(line)]
    if not hits:
        return None
    adapter = next((m[1] for line in lines if (m := re.search(rf"mlx5_core ({_PCI})", line))), None)
    port = re.search(rf"pcieport ({_PCI})", hits[0])
    where = f"root port {port[1]}" if port else "the PCIe bus"
    owner = f" of the ConnectX-7 (mlx5_core {adapter})" if adapter else ""
    return f"fatal AER on {where}{owner}: {hits[0].strip()[:160]}", tuple(hits[:5])


CHECKS: tuple[Check, ...] = (
    Check(
        "PORT.REACHABLE", "NET_FIREWALL", "the fabric's ports are open", ("doctor",),
        "error", "hardware", (Ufw,), _firewall,
        why="NCCL, gloo and the message queues use ephemeral ports in both directions, so opening"
        " only the API's and the rendezvous' port is not enough",
        fix="sudo ufw allow in on <fabric interface> from <fabric network>",
        symptom="Ping and SSH work, but ranks time out on a port around 50000; turning the firewall"
        " off cures it.",
    ),
    Check(
        "PEER.CONTROL", "NET_PEER_SILENT", "nodes answer each other", ("doctor",),
        "error", "hardware", (Echoes,), _control,
        why="nodes that do not answer each other cannot form a cluster",
        fix="check cable, address and firewall between the two nodes",
        symptom="A node cannot be reached from another one.",
        also=("NET_PACKET_LOSS",),
    ),
    Check(
        "RING.JUMBO_PING", "NET_JUMBO_BLOCKED", "long packets pass", ("doctor", "launch"),
        "error", "hardware", (Echoes,), _jumbo,
        why="packets of the interface's full length do not arrive: a switch or the other end has a"
        " smaller MTU, or the way is dead",
        fix="set MTU 9000 at both ends and on the switch",
        symptom="Small transfers between nodes work and large ones hang.",
        also=("NET_PACKET_LOSS",),
    ),
    Check(
        "NET.NAMES", "NET_MDNS_DELAY", "a name's first address connects", ("verify", "eval"),
        "warning", "reach", (HostAnswers, ClientConnections), _mdns,
        why="the name resolves to an IPv6 address that nobody answers, and a client waits for it"
        " before it tries IPv4",
        fix="use the IPv4 address as the endpoint",
        symptom="Every request takes a constant half minute longer than the server's log shows.",
        text_only="it is measured on the client that feels it, which is not one of the nodes",
    ),
    Check(
        "NET.AER", "NET_CX7_AER_FATAL", "no fatal PCIe error", ("doctor", "watch"),
        "error", "hardware", (KernelLog,), _aer,
        why="the adapter died on the PCIe bus before the engine failed; starting the engine again"
        " on this host ends in a lock-up, so its restart is suppressed",
        fix="reboot the node; do not restart the engine before; then update the adapter's firmware",
        symptom="The API is healthy, then generations fail and the host locks up for hours.",
    ),
)  # fmt: skip
