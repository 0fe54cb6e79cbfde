"""From a node's facts to the place of its rank."""

from __future__ import annotations

from typing import TypeVar

from sparkserve.errors import ConfigError, NodeError
from sparkserve.facts import host, network, runtime
from sparkserve.model.base import Model
from sparkserve.model.cluster import Node
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.place import Place
from sparkserve.model.profile import Profile

T = TypeVar("T", bound=Model)


def locate(node: Node, facts: NodeFacts, profile: Profile) -> Place:
    """Derive a rank's place from its node's facts.

    Raises:
        NodeError: a fact that the spec cannot do without was not observed.
        ConfigError: no interface of the node carries the address it should be reached at.
    """
    identity = _need(host.IDENTITY.read(facts), node.name, "host.identity")
    addresses = _need(network.ADDRESSES.read(facts), node.name, "network.addresses")
    python = _need(runtime.PYTHON.read(facts), node.name, "runtime.python")
    if python.package_dir is None:
        raise NodeError(node.name, f"sparkserve is not installed in {python.python}")
    address = rendezvous_address(node, identity.ssh_address, profile)
    interface = node.interface or addresses.interface_of(address)
    if interface is None:
        held = ", ".join(f"{a.interface} {a.address}" for a in addresses.addresses)
        raise ConfigError(
            f"{node.name}: no interface carries {address}, expected one of: {held}",
            hint="sparkserve cluster show",
        )
    return Place(
        name=node.name,
        root=identity.root,
        python=python.python,
        address=address,
        interface=interface,
        cpu_count=identity.cpu_count,
        package_dir=python.package_dir,
    )


def rendezvous_address(node: Node, ssh_address: str | None, profile: Profile) -> str:
    """Address at which the other ranks reach this node."""
    if node.is_local and node.fabric_address is None:
        return "127.0.0.1"
    if profile.fabric.bootstrap == "fabric" and node.fabric_address is not None:
        return node.fabric_address
    # The host may be a name or an alias; the node knows the address we reached it at.
    return ssh_address or node.host


def _need(fact: T | Unobserved, node: str, probe_id: str) -> T:
    if isinstance(fact, Unobserved):
        raise NodeError(node, f"{probe_id} could not be read: {fact.reason}")
    return fact
