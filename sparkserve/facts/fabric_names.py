"""What the names of a Spark's fast ports tell: which cage, which of its two PCIe halves.

One cage appears as two network devices and two RDMA devices: ``enp1s0f0np0`` with
``rocep1s0f0``, and ``enP2p1s0f0np0`` with ``roceP2p1s0f0``. The number behind ``f`` is the cage,
the PCI domain behind ``P`` is the half.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(
    r"(?P<kind>en|roce|ib)(?:P(?P<domain>\d+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<cage>\d+)"
    r"(?P<port>np\d+)?"
)


class FabricName(NamedTuple):
    """A name taken apart."""

    cage: int
    domain: int
    adapter: tuple[int, int]
    """Bus and slot, which both halves share."""


def fabric_name(name: str) -> FabricName | None:
    """Parts of an RDMA device's or a fast network device's name; None for any other.

    A network device counts only with its port part (``np0``), which ordinary cards lack.
    """
    found = _NAME.fullmatch(name.partition("@")[0].partition(".")[0])
    if found is None or (found["kind"] == "en" and not found["port"]):
        return None
    return FabricName(
        int(found["cage"]), int(found["domain"] or 0), (int(found["bus"]), int(found["slot"]))
    )


def is_twin(one: str, other: str) -> bool:
    """Whether two names are the two halves of one cage."""
    first, second = fabric_name(one), fabric_name(other)
    if first is None or second is None:
        return False
    same = first.cage == second.cage and first.adapter == second.adapter
    return same and first.domain != second.domain


def device_of(netdev: str) -> str | None:
    """RDMA device of a fast network device by the usual naming; None for any other."""
    if fabric_name(netdev) is None or not netdev.startswith("en"):
        return None
    return f"roce{netdev.removeprefix('en').rpartition('np')[0]}"


def netdev_of(device: str) -> str | None:
    """Network device of an RDMA device by the usual naming; None where the name does not tell."""
    parts = fabric_name(device)
    if parts is None or not device.startswith("roce"):
        return None
    return f"en{device.removeprefix('roce')}np{parts.cage}"
