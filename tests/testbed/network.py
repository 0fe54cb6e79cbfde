"""The wires: one switch namespace with two bridges, one controller, one namespace per node.

Nothing is ever added to the machine's own network namespace, so no address outside these
namespaces is used, and two clusters can exist at once with the same addresses.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.testbed.shell import TestbedError, run, run_batch

MANAGEMENT = "enP7s7"
"""The name of a Spark's own 10 GbE port."""
FABRIC = "enp1s0f0np0"
TWIN = "enP2p1s0f0np0"
"""The second PCIe half of the cabled port."""
UNCABLED = ("enp1s0f1np1", "enP2p1s0f1np1")
MTU_BYTES = {MANAGEMENT: 1500, FABRIC: 9000, TWIN: 9000}
CONTROLLER_ADDRESS = "10.77.0.1"

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Port(NamedTuple):
    """One cable between a node's interface and a bridge of the switch."""

    device: str
    bridge: str
    switch_side: str
    address: str


def management_address(number: int) -> str:
    """Management address of node ``number`` (1..16)."""
    return f"10.77.0.{10 + number}"


def fabric_address(number: int) -> str:
    """Fabric address of node ``number`` (1..16)."""
    return f"10.77.1.{10 + number}"


def twin_address(number: int) -> str:
    """Address of the fabric port's second half on node ``number`` (1..16)."""
    return f"10.77.2.{10 + number}"


def node_ports(number: int) -> tuple[Port, ...]:
    """Cables of node ``number``."""
    return (
        Port(MANAGEMENT, "brm", f"m{number}", management_address(number)),
        Port(FABRIC, "brf", f"f{number}", fabric_address(number)),
        Port(TWIN, "brt", f"t{number}", twin_address(number)),
    )


class Network:
    """The network namespaces of one cluster."""

    def __init__(self, prefix: str, node_count: int) -> None:
        self.prefix = prefix
        self.switch = f"{prefix}-sw"
        self.controller = f"{prefix}-ctl"
        self.nodes = {number: f"{prefix}-spark{number}" for number in range(1, node_count + 1)}

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of all namespaces below /run/netns."""
        return (self.switch, self.controller, *self.nodes.values())

    def up(self) -> None:
        """Make all namespaces, bridges and cables."""
        run_batch(["ip"], [f"netns add {name}" for name in self.namespaces])
        bridges = [
            line
            for bridge in ("brm", "brf", "brt")
            for line in (f"link add {bridge} type bridge", f"link set {bridge} mtu 9000 up")
        ]
        run_batch(["ip", "-n", self.switch], bridges)
        self._plug(self.controller, [Port(MANAGEMENT, "brm", "mctl", CONTROLLER_ADDRESS)], {})
        # a gateway that leads nowhere and says so: what a node sends to the world fails at once
        run("ip", "-n", self.controller, "route", "add", "unreachable", "default")
        for setting in ("net.ipv4.ip_forward=1", "net.ipv4.icmp_ratelimit=0"):
            run("nsenter", f"--net=/run/netns/{self.controller}", "sysctl", "-qw", setting)
        for number, namespace in self.nodes.items():
            uncabled = {device: f"u{index}-{number}" for index, device in enumerate(UNCABLED)}
            self._plug(namespace, node_ports(number), uncabled)
            add_default_route(namespace)

    def _plug(self, namespace: str, ports: Sequence[Port], uncabled: Mapping[str, str]) -> None:
        pairs = [(port.device, port.switch_side) for port in ports] + list(uncabled.items())
        run_batch(
            ["ip"],
            [
                f"link add {side} netns {self.switch} type veth peer name {device}"
                f" netns {namespace}"
                for device, side in pairs
            ],
        )
        run_batch(
            ["ip", "-n", self.switch],
            [f"link set {port.switch_side} mtu 9000 master {port.bridge} up" for port in ports],
        )
        inner = ["link set lo up"]
        for port in ports:
            inner.append(f"link set {port.device} mtu {MTU_BYTES[port.device]} up")
            inner.append(f"addr add {port.address}/24 dev {port.device}")
        # the far end stays down, so these have no carrier, as ports without a cable
        inner += [f"link set {device} mtu 9000 up" for device in uncabled]
        run_batch(["ip", "-n", namespace], inner)

    def down(self) -> None:
        """Remove every namespace of this cluster that exists."""
        remove_namespaces(self.prefix)


def add_default_route(namespace: str) -> None:
    """Give a node its way to the world; it is lost whenever the management link goes down."""
    run("ip", "-n", namespace, "route", "replace", "default", "via", CONTROLLER_ADDRESS,
        "dev", MANAGEMENT)  # fmt: skip


def namespaces_of(prefix: str) -> list[str]:
    """Names below /run/netns that belong to a cluster."""
    folder = Path("/run/netns")
    pattern = re.compile(re.escape(prefix) + r"-(sw|ctl|spark\d+)")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if pattern.fullmatch(name)]


def remove_namespaces(prefix: str) -> None:
    """Remove a cluster's namespaces; cables go first, since an orphaned socket keeps its own."""
    names = namespaces_of(prefix)
    switch = f"{prefix}-sw"
    if switch in names:
        ports = re.findall(r"^\d+: ([^@:]+)@", run("ip", "-n", switch, "-o", "link").stdout, re.M)
        for port in ports:
            run("ip", "-n", switch, "link", "del", port, check=False)
    for name in names:
        run("ip", "netns", "del", name)


@contextmanager
def enter(namespace: str) -> Iterator[None]:
    """Move the calling thread into a network namespace and back; threads started inside inherit.

    Raises:
        TestbedError: the namespace does not exist, or this process may not enter it.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(inside)
        finally:
            os.close(inside)
        try:
            yield
        finally:
            _setns(before)
    finally:
        os.close(before)


def _setns(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise TestbedError(f"setns: {os.strerror(ctypes.get_errno())}")
