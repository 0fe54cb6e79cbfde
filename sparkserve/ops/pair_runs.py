"""Carrying out tests between nodes: one round after the other, both ends of a pair at once.

A listener runs over its node's connection, so it ends with the test, with Ctrl-C and with a lost
connection alike.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from sparkserve.checks.cabling import Cable, CableEnd, cabling
from sparkserve.checks.scene import Scene
from sparkserve.errors import NodeError
from sparkserve.facts.links import Links
from sparkserve.facts.routes import Addresses
from sparkserve.model.diagnosis import Bundle, Unread
from sparkserve.model.reading import Reading
from sparkserve.ops.bundle import plain_text
from sparkserve.planning.pair_tests import (
    SECONDS,
    PairEnd,
    PairTest,
    jumbo_pings,
    rdma_tests,
    rounds,
    tcp_tests,
)
from sparkserve.transport.host import Host, map_hosts

QUEUES = 8
"""Buffers that an RDMA test holds at once on either node."""
_READY_S = 10.0
_ASK_S = 15.0


def tests_of(scene: Scene, size_bytes: int) -> tuple[PairTest, ...]:
    """What there is to measure between the nodes of a scene.

    Along every cable that is known, else between the nodes' addresses on the fast network.
    size_bytes: all buffers of one RDMA test together.
    """
    found: list[PairTest] = []
    for ends in _wires(scene):
        first_port = 18515 + len(found)
        found += jumbo_pings(ends)
        found += tcp_tests(ends, first_port=first_port)
        found += rdma_tests(ends, size_bytes=max(size_bytes // QUEUES, 1), first_port=first_port)
    return tuple(found)


def expected_s(tests: Sequence[PairTest]) -> int:
    """How long the tests take, roughly: rounds of some seconds where something is sent."""
    return sum(
        SECONDS + 1 if any(test.server_command for test in together) else 1
        for together in rounds(tests)
    )


def measure(tests: Sequence[PairTest], hosts: Mapping[str, Host]) -> Bundle:
    """Run the tests; each answer is a reading of the node that sent.

    Raises:
        KeyboardInterrupt: at once; whoever closes the hosts ends what still runs on them.
    """
    able, unread = _able(tests, hosts)
    readings: list[Reading] = []
    for together in rounds(able):
        with ThreadPoolExecutor(len(together), thread_name_prefix="pair") as pool:
            readings += pool.map(lambda test: _measure(test, hosts), together)
    return Bundle(readings=tuple(readings), unread=tuple(unread))


def _wires(scene: Scene) -> list[tuple[PairEnd, ...]]:
    cables = cabling(scene)
    if cables:
        return [tuple(_end(end) for end in cable.ends) for cable in cables if _is_used(cable)]
    ends = []
    for node in scene.fleet.nodes if scene.fleet else ():
        addresses, links = scene.of(node.name, Addresses), scene.of(node.name, Links)
        held = [a for a in addresses.addresses if a.address == node.fabric_address] if (
            addresses
        ) else []  # fmt: skip
        if held:
            link = links.named(held[0].interface) if links else None
            ends.append(
                PairEnd(
                    node=node.name,
                    address=held[0].address,
                    interface=held[0].interface,
                    mtu_bytes=link.mtu_bytes if link else None,
                )
            )
    return [tuple(ends)] if len(ends) > 1 else []


def _is_used(cable: Cable) -> bool:
    return all(end.has_carrier is not False for end in cable.ends)


def _end(end: CableEnd) -> PairEnd:
    indexes = [int(part) for part in (end.gid or "").strip("{}").split(",") if part.strip()]
    return PairEnd(
        node=end.node,
        address=end.address,
        interface=end.interface,
        mtu_bytes=end.mtu_bytes,
        rdma=end.rdma,
        gid_index=min(indexes, default=None),
    )


def _able(
    tests: Sequence[PairTest], hosts: Mapping[str, Host]
) -> tuple[list[PairTest], list[Unread]]:
    """Tests whose programs are there at both ends, and what is said of the others."""
    programs = sorted({test.needs for test in tests if test.needs})
    ask = "\n".join(f"command -v {program} >/dev/null && echo {program}" for program in programs)
    group = map_hosts(
        list(hosts.values()),
        lambda host: host.script(f"{ask}\ntrue\n", timeout_s=_ASK_S).stdout.split(),
    )
    able, unread, told = [], [], set()
    for test in tests:
        lacking = [
            node
            for node in (test.client, test.server)
            if node not in group or (test.needs and test.needs not in group[node])
        ]
        if not lacking:
            able.append(test)
            continue
        reason = f"{test.needs} is not on {lacking[0]}"
        if lacking[0] not in group:
            reason = f"{lacking[0]} could not be asked"
        if reason not in told:
            told.add(reason)
            unread.append(Unread(label=test.id, node=test.client, what=test.what, reason=reason))
    return able, unread


def _measure(test: PairTest, hosts: Mapping[str, Host]) -> Reading:
    if test.server_command is None:
        return _client(test, hosts[test.client])
    cancel, ready = threading.Event(), threading.Event()

    def heard(line: str) -> None:
        if test.ready in line:
            ready.set()

    argv = ["sh", "-c", test.server_command]
    with ThreadPoolExecutor(1, thread_name_prefix="listener") as pool:
        listener = pool.submit(hosts[test.server].stream, argv, on_line=heard, cancel=cancel)
        try:
            listener.add_done_callback(lambda _: ready.set())
            ready.wait(_READY_S)
            return _client(test, hosts[test.client])
        finally:
            cancel.set()


def _client(test: PairTest, host: Host) -> Reading:
    try:
        result = host.run(["sh", "-c", test.client_command], timeout_s=test.timeout_s)
        text, status = plain_text(result.stdout + result.stderr), result.exit_code
        if result.status != "exited":
            text += f"no answer within {test.timeout_s:.0f} s\n"
    except NodeError as error:
        text, status = f"{error.message}\n", None
    return Reading(
        text=text, label=test.id, node=test.client, what=test.what, rc=status, note=test.note
    )
