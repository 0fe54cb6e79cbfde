"""Where a rank stands follows from its own node's facts."""

from __future__ import annotations

import pytest

from sparkserve.errors import ConfigError, NodeError
from sparkserve.facts import network
from sparkserve.model.cluster import Node
from sparkserve.model.facts import Unobserved
from sparkserve.planning.places import locate
from tests.scenes import cluster, facts, profile


def test_fabric_bootstrap_takes_the_fabric_address_and_its_interface() -> None:
    place = locate(cluster(2).nodes[1], facts(2), profile())
    assert (place.address, place.interface) == ("192.168.0.12", "enp1s0f0np0")


def test_management_bootstrap_takes_the_address_ssh_came_in_on() -> None:
    wish = profile(fabric={"bootstrap": "management"})
    place = locate(cluster(1).nodes[0], facts(1), wish)
    assert (place.address, place.interface) == ("10.0.0.11", "enP7s7")


def test_alias_as_host_still_gives_an_address() -> None:
    place = locate(Node(name="spark1", host="my-alias"), facts(1), profile())
    assert place.address == "10.0.0.11"


def test_address_that_no_interface_carries_is_refused_with_what_there_is() -> None:
    node = Node(name="spark1", host="10.0.0.11", fabric_address="192.168.9.9")
    with pytest.raises(ConfigError, match=r"no interface carries 192\.168\.9\.9.*enP7s7 10"):
        locate(node, facts(1), profile())


def test_address_is_found_however_it_is_written() -> None:
    long = network.InterfaceAddress(interface="enp1", address="fd00::12", prefix_length=64)
    seen = facts(1, network_addresses=network.AddressFacts(addresses=(long,)))
    node = Node(name="spark1", host="10.0.0.11", fabric_address="fd00:0:0::0012")
    assert locate(node, seen, profile()).interface == "enp1"


def test_unobserved_fact_is_named() -> None:
    blind = facts(1, network_addresses=Unobserved(reason="exit 127: ip: not found"))
    with pytest.raises(NodeError, match=r"spark1: network\.addresses could not be read: exit 127"):
        locate(cluster(1).nodes[0], blind, profile())
