"""Ways in which a node can be broken; each gives a `Fault` that undoes it."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from tests.testbed.network import (
    FABRIC,
    MANAGEMENT,
    MTU_BYTES,
    TWIN,
    add_default_route,
    node_ports,
)
from tests.testbed.shell import run, wait_until

if TYPE_CHECKING:
    from tests.testbed.node import Node

RELAY = Path(__file__).parent / "assets/relay.py"


Scope = Literal["network", "boot", "disk"]
"""Where a fault lives: in the wires (a power cycle mends it), in what runs (a power cycle
forgets it), or on a disk (it is still there after a power cycle)."""


class Fault:
    """A fault that is in force; ``undo()`` or leaving a ``with`` block ends it, once."""

    def __init__(
        self, node: Node, title: str, undo: Callable[[], None], *, scope: Scope = "network"
    ) -> None:
        self.title = title
        self.scope = scope
        self._node = node
        self._undo: Callable[[], None] | None = undo
        node.active_faults.append(self)

    def undo(self) -> None:
        """End the fault; a second call does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            self._node.active_faults.remove(self)
            undo()

    def forget(self) -> None:
        """Drop the fault without undoing it: the node is being rebuilt anyway."""
        if self._undo is not None:
            self._undo = None
            self._node.active_faults.remove(self)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def _rules(node: Node, title: str, rules: Sequence[Sequence[str]]) -> Fault:
    for rule in rules:
        node.in_network("iptables", "-w", "-I", *rule)

    def undo() -> None:
        for rule in rules:
            node.in_network("iptables", "-w", "-D", *rule)

    return Fault(node, title, undo)


def blackhole(node: Node) -> Fault:
    """Drop every packet in both directions, silently: a dark link, an unplugged cable."""
    rules = (["INPUT", "!", "-i", "lo", "-j", "DROP"], ["OUTPUT", "!", "-o", "lo", "-j", "DROP"])
    return _rules(node, "blackhole", rules)


def loss(node: Node, probability: float) -> Fault:
    """Drop each incoming packet with this probability (0..1)."""
    chance = ["-m", "statistic", "--mode", "random", "--probability", str(probability)]
    return _rules(node, f"loss {probability}", [["INPUT", "!", "-i", "lo", *chance, "-j", "DROP"]])


def reject_port(node: Node, port: int) -> Fault:
    """Answer new and old connections to a TCP port with a reset, as a firewall may."""
    rule = ["INPUT", "!", "-i", "lo", "-p", "tcp", "--dport", str(port)]
    return _rules(node, f"reject {port}", [[*rule, "-j", "REJECT", "--reject-with", "tcp-reset"]])


def sshd_off(node: Node) -> Fault:
    """Stop the node's sshd from listening; sessions that exist go on."""
    node.sshd_stop()
    return Fault(node, "sshd off", node.sshd_start, scope="boot")


def rate(node: Node, mbit: float, device: str) -> Fault:
    """Limit a link to so many Mbit/s in each direction (token bucket)."""
    port = _port(device, node.number)
    shape = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms"]
    run("tc", "-n", node.namespace, "qdisc", "replace", "dev", device, *shape)
    run("tc", "-n", node.network.switch, "qdisc", "replace", "dev", port, *shape)

    def undo() -> None:
        run("tc", "-n", node.namespace, "qdisc", "del", "dev", device, "root")
        run("tc", "-n", node.network.switch, "qdisc", "del", "dev", port, "root")

    return Fault(node, f"rate {mbit} Mbit/s on {device}", undo)


def link_down(node: Node, device: str) -> Fault:
    """Take an interface down; on the fabric its RDMA port goes down too."""
    run("ip", "-n", node.namespace, "link", "set", device, "down")
    if device in (FABRIC, TWIN):
        node.set_fact(ports_down=(*node.facts.ports_down, device))

    def undo() -> None:
        run("ip", "-n", node.namespace, "link", "set", device, "up")
        if device == MANAGEMENT:
            add_default_route(node.namespace)
        node.set_fact(ports_down=tuple(d for d in node.facts.ports_down if d != device))

    return Fault(node, f"{device} down", undo)


def mtu(node: Node, device: str, size_bytes: int) -> Fault:
    """Set an interface's MTU; what is larger and may not be fragmented is lost."""
    run("ip", "-n", node.namespace, "link", "set", device, "mtu", size_bytes)
    # the switch's own side would refuse such frames on real hardware as well
    port = _port(device, node.number)
    run("ip", "-n", node.network.switch, "link", "set", port, "mtu", size_bytes)

    def undo() -> None:
        run("ip", "-n", node.namespace, "link", "set", device, "mtu", MTU_BYTES[device])
        run("ip", "-n", node.network.switch, "link", "set", port, "mtu", 9000)

    return Fault(node, f"MTU {size_bytes} on {device}", undo)


def fill(node: Node, folder: str, leave_kib: int) -> Fault:
    """Fill the file system that holds a folder, but for ``leave_kib``."""
    path = str(PurePosixPath(folder) / ".testbed-fill")
    script = (
        f"free=$(df -k --output=avail {shlex.quote(folder)} | tail -1)\n"
        f"n=$((free - {leave_kib}))\n"
        f'[ "$n" -le 0 ] || fallocate -l "${{n}}K" {shlex.quote(path)}\n'
    )
    node.inside(["sh", "-ec", script])
    return Fault(node, f"{folder} full", lambda: _inside(node, ["rm", "-f", path]), scope="disk")


def readonly(node: Node, mount_point: str) -> Fault:
    """Remount a file system read-only, as the kernel does after errors."""
    node.inside(["mount", "-o", "remount,ro", mount_point])
    return Fault(
        node,
        f"{mount_point} read-only",
        lambda: _inside(node, ["mount", "-o", "remount,rw", mount_point]),
        scope="disk",
    )


def hidden(node: Node, path: str) -> Fault:
    """Let a program or file be there no more."""
    away = f"/var/tmp/{PurePosixPath(path).name}.hidden"
    _inside(node, ["mv", path, away])
    return Fault(node, f"{path} hidden", lambda: _inside(node, ["mv", away, path]), scope="disk")


def replaced(node: Node, path: str, text: str) -> Fault:
    """Give a file of the node another text; owner and mode stay."""
    before = node.read(path)
    node.write(path, text)
    return Fault(node, f"{path} replaced", lambda: node.write(path, before), scope="disk")


def changed_host_key(node: Node) -> Fault:
    """Give the node another SSH host key, as a reinstalled (or an impostor's) machine has."""
    path = "/etc/ssh/testbed_hostkey"
    before, public = node.read(path), node.read(f"{path}.pub")
    node.inside(["sh", "-ec", f"rm -f {path} {path}.pub && ssh-keygen -qt ed25519 -N '' -f {path}"])
    node.sshd_stop()
    node.sshd_start()

    def undo() -> None:
        node.write(path, before)
        node.write(f"{path}.pub", public)
        node.sshd_stop()
        node.sshd_start()

    return Fault(node, "changed host key", undo, scope="disk")


def slow(
    node: Node, delay_ms: float, *, jitter_ms: float = 0, loss: float = 0, device: str = MANAGEMENT
) -> Fault:
    """Delay each frame of one link by so many ms each way, through a relay in the switch.

    The kernel may lack ``sch_netem``; a process that copies frames does the same.
    """
    port = _port(device, node.number)
    bridge = next(p.bridge for p in node_ports(node.number) if p.device == device)
    switch, near, far = node.network.switch, f"{port}x", f"{port}y"
    run("ip", "-n", switch, "link", "add", near, "type", "veth", "peer", "name", far)
    for end in (near, far):
        run("ip", "-n", switch, "link", "set", end, "mtu", 9000, "up")
    run("ip", "-n", switch, "link", "set", port, "nomaster")
    run("ip", "-n", switch, "link", "set", far, "master", bridge)
    # a raw socket sees merged segments unless every sender cuts them first
    for place, end in _frame_sources(node, bridge, port, near, far):
        argv = ("ethtool", "-K", end, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
        run("nsenter", f"--net=/run/netns/{place}", *argv)
    relay = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{switch}", sys.executable, "-IS", str(RELAY), port, near,
         str(delay_ms / 1000), str(jitter_ms / 1000), str(loss)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert relay.stdout is not None
    if relay.stdout.readline() != "relaying\n":
        raise RuntimeError(f"the relay did not start: {relay.stdout.read()}")

    def undo() -> None:
        relay.send_signal(signal.SIGKILL)
        relay.communicate()
        run("ip", "-n", switch, "link", "del", near)
        run("ip", "-n", switch, "link", "set", port, "master", bridge)

    return Fault(node, f"{delay_ms} ms on {device}", undo)


def _frame_sources(
    node: Node, bridge: str, port: str, near: str, far: str
) -> list[tuple[str, str]]:
    switch = node.network.switch
    sources = [(switch, end) for end in (port, near, far)]
    for number, namespace in node.network.nodes.items():
        for cable in node_ports(number):
            if cable.bridge == bridge:
                sources += [(namespace, cable.device), (switch, cable.switch_side)]
    if bridge == "brm":
        sources += [(node.network.controller, MANAGEMENT), (switch, "mctl")]
    return list(dict.fromkeys(sources))


def _port(device: str, number: int) -> str:
    return next(port.switch_side for port in node_ports(number) if port.device == device)


def _inside(node: Node, argv: Sequence[str]) -> None:
    node.inside(argv)


def restore_network(node: Node) -> None:
    """Put rules, links, MTU and queues of a node back to how they were built."""
    for chain in ("INPUT", "OUTPUT", "FORWARD"):
        node.in_network("iptables", "-w", "-F", chain)
    for port in node_ports(node.number):
        for place, device in (
            (node.namespace, port.device),
            (node.network.switch, port.switch_side),
        ):
            run("tc", "-n", place, "qdisc", "del", "dev", device, "root", check=False)
        size = MTU_BYTES[port.device]
        run("ip", "-n", node.namespace, "link", "set", port.device, "mtu", size, "up")
        run("ip", "-n", node.network.switch, "link", "set", port.switch_side, "mtu", 9000, "up")
    add_default_route(node.namespace)


def wait_listening(node: Node) -> None:
    """Wait until the node's sshd listens."""
    wait_until(node.sshd_listens, what=f"sshd of {node.name}\n{node.console()}", deadline_s=30)
