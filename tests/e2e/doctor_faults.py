"""Faults that are injected on simulated nodes, each with what doctor must say about it.

They are grouped into scenes: one doctor run per scene sees several faults that do not touch each
other, on different nodes or of different kinds.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.e2e.doctor_fleet import ROOT, DoctorFleet
from tests.testbed.network import MANAGEMENT
from tests.testbed.node import Node
from tests.testbed.shell import run

Inject = Callable[[DoctorFleet, Node], AbstractContextManager[Any]]
GIB_KIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One fault: how it is made, and what must be found."""

    name: str
    """As a sentence: what is wrong."""
    node: int | None
    """Number of the node that must be blamed; None = no node alone."""
    inject: Inject
    code: str
    observed: str
    """Regular expression for what was seen."""
    fix: str
    """Regular expression for what mends it."""
    severity: str = "error"
    also: tuple[int | None, ...] = ()
    """Nodes that may be blamed besides under the same code, since it is true of them, too."""
    follows: tuple[str, ...] = ()
    """Codes of what follows from the fault on these nodes."""


@dataclass(frozen=True)
class Scene:
    """Cases that are in force together during one run of doctor."""

    name: str
    cases: tuple[Case, ...]
    arguments: tuple[str, ...] = ()
    profile: tuple[tuple[str, Any], ...] = ()
    """Sections of the profile that differ."""
    topology: str = "switch"
    nodes: int = 4
    """How many nodes the cluster has."""


# -- ways to break a node ------------------------------------------------------------------------


def facts(**values: Any) -> Inject:
    """Other hardware."""

    @contextmanager
    def inject(_: DoctorFleet, node: Node) -> Iterator[None]:
        before = {name: getattr(node.facts, name) for name in values}
        node.set_fact(**values)
        try:
            yield
        finally:
            node.set_fact(**before)

    return inject


def sys_file(path: str, text: str) -> Inject:
    """Another text in one file of /sys."""

    @contextmanager
    def inject(_: DoctorFleet, node: Node) -> Iterator[None]:
        node.set_sys(path, text)
        try:
            yield
        finally:
            node.set_fact()

    return inject


def shell(do: str, undo: str) -> Inject:
    """Commands that root runs on the node."""

    @contextmanager
    def inject(_: DoctorFleet, node: Node) -> Iterator[None]:
        node.inside(["sh", "-ec", do])
        try:
            yield
        finally:
            node.inside(["sh", "-ec", undo])

    return inject


def process(code: str, *words: str, until: str) -> Inject:
    """A Python process of the plain user; injected once ``until`` succeeds on the node."""
    command = shlex.join(["python3", "-c", code, *words])

    @contextmanager
    def inject(_: DoctorFleet, node: Node) -> Iterator[None]:
        # not the usual `&`: the shell must be gone, as that of an engine's launcher is
        start = f"setsid {command} >/dev/null 2>&1 </dev/null & n=0;"
        wait = f"until {until}; do n=$((n + 1)); [ $n -lt 200 ] || exit 1; sleep 0.05; done"
        node.inside(["su", "spark", "-s", "/bin/sh", "-c", f"{start} {wait}"])
        try:
            yield
        finally:
            node.kill(r"time\.sleep\(98765\)")

    return inject


@contextmanager
def off(_: DoctorFleet, node: Node) -> Iterator[None]:
    node.power_off()
    try:
        yield
    finally:
        node.start()


@contextmanager
def unknown_host_key(fleet: DoctorFleet, node: Node) -> Iterator[None]:
    before = fleet.known_hosts.read_text()
    kept = [line for line in before.splitlines() if not line.startswith(node.address + ",")]
    fleet.known_hosts.write_text("\n".join(kept) + "\n")
    try:
        yield
    finally:
        fleet.known_hosts.write_text(before)


def extra_address(address: str, device: str) -> Inject:
    return shell(f"ip addr add {address} dev {device}", f"ip addr del {address} dev {device}")


def wifi_default_route() -> Inject:
    return shell(
        "ip link add wlP9s9 type veth peer name wlpeer; ip link set wlpeer up;"
        "ip link set wlP9s9 up; ip addr add 192.168.50.37/24 dev wlP9s9;"
        "ip route replace default via 192.168.50.1 dev wlP9s9",
        f"ip link del wlP9s9; ip route replace default via 10.77.0.1 dev {MANAGEMENT}",
    )


def filtered(*rule: str, on: int | None = None) -> Inject:
    """Packets that this rule of iptables means are dropped.

    on: number of the node that drops them, where another one must be blamed.
    """

    @contextmanager
    def inject(fleet: DoctorFleet, node: Node) -> Iterator[None]:
        where = fleet.nodes[on - 1] if on else node
        where.in_network("iptables", "-w", "-I", *rule, "-j", "DROP")
        try:
            yield
        finally:
            where.in_network("iptables", "-w", "-D", *rule, "-j", "DROP")

    return inject


EVERY_SECOND = ("-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0")


def switch_mtu(size_bytes: int) -> Inject:
    """The switch's port of the first fabric half takes no longer frames."""

    @contextmanager
    def inject(_: DoctorFleet, node: Node) -> Iterator[None]:
        where = ("-n", node.network.switch, "link", "set", f"f{node.number}", "mtu")
        run("ip", *where, size_bytes)
        try:
            yield
        finally:
            run("ip", *where, 9000)

    return inject


def forwarding(*, but: int) -> Inject:
    """All nodes pass on packets of others, but for one."""

    @contextmanager
    def inject(fleet: DoctorFleet, _: Node) -> Iterator[None]:
        others = [node for node in fleet.nodes if node.number != but]
        for node in others:
            node.in_network("sysctl", "-qw", "net.ipv4.ip_forward=1")
        try:
            yield
        finally:
            for node in others:
                node.in_network("sysctl", "-qw", "net.ipv4.ip_forward=0")

    return inject


@contextmanager
def cloned(fleet: DoctorFleet, node: Node) -> Iterator[None]:
    """The machine-id of the first node."""
    with node.replace("/etc/machine-id", fleet.nodes[0].read("/etc/machine-id")):
        yield


@contextmanager
def stale_run(_: DoctorFleet, node: Node) -> Iterator[None]:
    """A run of yesterday whose guard lives on."""
    sleeper = process(SLEEP, until="pgrep -f 98765")(_, node)
    with sleeper:
        pid = next(p.pid for p in node.processes() if p.argv[-1:] == (SLEEP,))
        begun = node.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]
        lock = {"run_id": "run-of-yesterday", "pid": pid, "start_ticks": int(begun)}
        state = f"{ROOT}/state"
        node.inside(["mkdir", "-p", state])
        node.write(f"{state}/serving.lock", json.dumps(lock))
        yield
        node.inside(["rm", "-r", state])


SLEEP = "import time; time.sleep(98765)"


def moved(path: str) -> Inject:
    return shell(f"mv {path} {path}.moved", f"mv {path}.moved {path}")


def cut(path: str) -> Inject:
    return shell(f"cp {path} {path}.whole; truncate -s -1000 {path}", f"mv {path}.whole {path}")


LISTENER = "import socket, time; s = socket.create_server(('0.0.0.0', 8888)); time.sleep(98765)"
ENGINE_IMAGE = "ghcr.io/lab/engine@sha256:" + "ab" * 32


def image(**fields: Any) -> Inject:
    return facts(docker_images=({"RepoDigests": [ENGINE_IMAGE], **fields},))
