"""Addresses of the node's interfaces, and the TCP ports that are taken."""

from __future__ import annotations

import ipaddress

from sparkserve.facts.probe import Context, Probe, UnusableOutput
from sparkserve.model.base import Model

_LISTEN = "0A"


class InterfaceAddress(Model):
    """One address of one interface."""

    interface: str
    address: str
    prefix_length: int


class AddressFacts(Model):
    """Every IPv4 and global IPv6 address of the node."""

    addresses: tuple[InterfaceAddress, ...]

    def interface_of(self, address: str) -> str | None:
        """Interface that carries the address, however it is written, or None."""
        try:
            address = str(ipaddress.ip_address(address))
        except ValueError:
            return None
        return next((a.interface for a in self.addresses if a.address == address), None)


class PortFacts(Model):
    """TCP ports on which something listens."""

    listening: tuple[int, ...]


def _parse_addresses(text: str) -> AddressFacts:
    found = []
    for line in text.splitlines():
        words = line.split()
        # Columns: index, interface, family, address/prefix, then attributes.
        if len(words) < 4 or words[2] not in ("inet", "inet6"):
            continue
        network = ipaddress.ip_interface(words[3])
        if network.version == 6 and network.ip.is_link_local:
            continue
        found.append(
            InterfaceAddress(
                interface=words[1].partition("@")[0],
                address=str(network.ip),
                prefix_length=network.network.prefixlen,
            )
        )
    if not found:
        raise UnusableOutput("`ip -o addr show` printed no address")
    return AddressFacts(addresses=tuple(found))


def _parse_ports(text: str) -> PortFacts:
    if "local_address" not in text:
        raise UnusableOutput("no header line of /proc/net/tcp")
    ports = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[0].endswith(":") and words[3] == _LISTEN:
            ports.add(int(words[1].rpartition(":")[2], 16))
    return PortFacts(listening=tuple(sorted(ports)))


def _script_addresses(_: Context) -> str:
    return "ip -o addr show"


def _script_ports(_: Context) -> str:
    return "cat /proc/net/tcp; cat /proc/net/tcp6 2>/dev/null || :"


ADDRESSES = Probe("network.addresses", AddressFacts, _script_addresses, _parse_addresses)
PORTS = Probe("network.ports", PortFacts, _script_ports, _parse_ports)
