"""Which GID index every rank is told: its own node's, by the profile's policy, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sparkserve.engine import spec as engine_spec
from sparkserve.model.profile import Profile
from sparkserve.model.rdma import ROCE_V1, ROCE_V2, Gid, RdmaPort
from sparkserve.planning.gids import GidEnd, GidPlan, is_asked, plan
from tests.scenes import place, profile

ULA = "fd00:0000:0000:0000:4ebb:47ff:fe00:0b02"
HCA = ["rocep1s0f0", "roceP2p1s0f0"]
GIDS = {"10.1.0.1": "0a01:0001", "10.1.0.2": "0a01:0002", "10.2.0.1": "0a02:0001",
        "10.2.0.2": "0a02:0002"}  # fmt: skip
"""Hexadecimal ends of the addresses' GIDs, written out by hand."""


def port(device: str, netdev: str, address: str, *indexes: int, state: str = "ACTIVE") -> RdmaPort:
    """A port whose address has RoCE v2 rows at these indexes, v1 before them, IPv6 below."""
    gid = f"0000:0000:0000:0000:0000:ffff:{GIDS[address]}"
    rows = [Gid(index=1, gid=ULA, type=ROCE_V2, netdev=netdev)]
    rows += [Gid(index=min(indexes) - 1, gid=gid, type=ROCE_V1, netdev=netdev)] if indexes else []
    rows += [Gid(index=index, gid=gid, type=ROCE_V2, netdev=netdev) for index in indexes]
    return RdmaPort(
        device=device, state=state, link_layer="Ethernet", netdev=netdev, gids=tuple(rows)
    )


def end(number: int, first: tuple[int, ...], second: tuple[int, ...], **changes: Any) -> GidEnd:
    """``spark<number>`` with both halves of a cage."""
    one, two = f"10.1.0.{number}", f"10.2.0.{number}"
    made = GidEnd(
        f"spark{number}",
        (port(HCA[0], "enp1s0f0np0", one, *first), port(HCA[1], "enP2p1s0f0np0", two, *second)),
        {"enp1s0f0np0": [one], "enP2p1s0f0np0": [two]},
        one,
    )
    return made._replace(**changes)


def wish(**fabric: Any) -> Profile:
    return profile(parallel={"tp": 2}, fabric={"hca": HCA, **fabric})


def indexes(plans: tuple[GidPlan, ...]) -> list[int | None]:
    assert [one.problem for one in plans] == ["" for _ in plans]
    return [one.index for one in plans]


def test_every_node_gets_the_lowest_index_of_its_own_tables() -> None:
    plans = plan(wish(), [end(1, (3,), (3,)), end(2, (3, 5, 7), (5, 7))])
    assert indexes(plans) == [3, 5]
    assert plans[1].told == (
        "NCCL_IB_GID_INDEX=5: lowest of {5, 7} on rocep1s0f0, roceP2p1s0f0 by address 10.1.0.2"
    )
    assert plans[1].member_lines == (
        "rocep1s0f0 {3, 5, 7}: 5 is RoCE v2 of 10.1.0.2 on enp1s0f0np0",
        "roceP2p1s0f0 {5, 7}: 5 is RoCE v2 of 10.2.0.2 on enP2p1s0f0np0",
    )


@pytest.mark.parametrize(
    ("values", "nodes"),
    [
        ({"parallel": {"tp": 2}}, 2),
        ({"parallel": {"tp": 2}, "fabric": {"gid_policy": "unset"}}, 2),
        ({"fabric": {"hca": HCA}}, 1),
        ({"parallel": {"tp": 2}, "fabric": {"hca": HCA}, "engine": {"device": "cpu"}}, 2),
    ],
)
def test_nothing_is_told_where_nothing_is_named_or_nobody_uses_it(
    values: dict[str, Any], nodes: int
) -> None:
    ends = [end(number, (3,), (3,)) for number in range(1, nodes + 1)]
    assert plan(profile(**values), ends) == ()


def test_an_index_alone_asks_for_every_active_port() -> None:
    assert is_asked(profile(fabric={"gid_index": 3}), 2)
    plans = plan(profile(fabric={"gid_index": 3}), [end(1, (3,), (3,)), end(2, (5,), (5,))])
    assert indexes(plans) == [3, 5]


def test_the_profiles_own_selector_wins_as_it_does_in_the_engine() -> None:
    only = wish(nccl={"NCCL_IB_HCA": "=roceP2p1s0f0"})
    assert indexes(plan(only, [end(1, (3,), (7,)), end(2, (5,), (9,))])) == [7, 9]


def test_port_that_is_down_does_not_count() -> None:
    down = port(HCA[1], "enP2p1s0f0np0", "10.2.0.1", 9, state="DOWN")
    half = end(1, (3,), ())._replace(ports=(port(HCA[0], "enp1s0f0np0", "10.1.0.1", 3), down))
    assert indexes(plan(wish(), [half, end(2, (5,), (5,))])) == [3, 5]


def test_port_without_a_usable_row_is_refused_and_named() -> None:
    good, bad = plan(wish(), [end(1, (3,), (3,)), end(2, (5,), ())])
    assert (good.index, good.problem) == (3, "")
    assert bad.index is None
    assert bad.told == (
        "no RoCE v2 row with an IPv4 address of the node on roceP2p1s0f0; "
        "usable: rocep1s0f0 {5}; roceP2p1s0f0 {}"
    )
    assert "enP2p1s0f0np0 has its address but no RoCE v2 row" in bad.remedy
    bare = end(2, (5,), (), addresses={"enp1s0f0np0": ["10.1.0.2"], "enP2p1s0f0np0": ["fd00::2"]})
    bad = plan(wish(), [end(1, (3,), (3,)), bare])[1]
    assert "ip addr add <IPv4 address>/24 dev enP2p1s0f0np0 on spark2" in bad.remedy


def test_ports_without_a_common_index_are_refused_with_both_sets_told_once() -> None:
    bad = plan(wish(), [end(1, (3,), (5,)), end(2, (5,), (5,))])[0]
    assert bad.index is None
    assert bad.told.count("rocep1s0f0 {3}; roceP2p1s0f0 {5}") == 1
    assert "fabric.hca" in bad.remedy


def test_node_whose_ports_have_other_names_is_refused_with_those_that_are_up() -> None:
    other = end(2, (), ())._replace(ports=(port("rocep1s0f1", "enp1s0f1np1", "10.1.0.2", 5),))
    bad = plan(wish(), [end(1, (3,), (3,)), other])[1]
    assert "NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0 selects no port" in bad.problem
    assert bad.remedy.endswith("ports that are up on spark2: rocep1s0f1")


def test_node_without_an_ipv4_address_is_refused_and_told_to_name_one() -> None:
    ends = [end(1, (3,), (3,)), end(2, (3,), (3,), preferred_ip=None)]
    for fabric in ({}, {"gid_policy": "pin", "gid_index": 3}):
        bad = plan(wish(**fabric), ends)[1]
        assert "no IPv4 address of this node is known" in bad.problem
        assert bad.remedy == "give spark2 a fabric_address (IPv4) in the cluster file"


def test_cluster_without_rdma_is_told_nothing_and_a_single_node_without_is_refused() -> None:
    without = [end(1, (), (), ports=()), end(2, (), (), ports=())]
    plans = plan(wish(), without)
    assert indexes(plans) == [None, None]
    assert plans[0].told == "NCCL_IB_GID_INDEX is not set: no node has an RDMA device"
    assert "selects no port" in plan(wish(), [end(1, (3,), (3,)), without[1]])[1].problem


@pytest.mark.parametrize("field", ["ports", "addresses"])
def test_what_could_not_be_read_is_not_taken_for_none(field: str) -> None:
    blind = [end(1, (3,), (3,)), end(2, (3,), (3,))._replace(**{field: None, "unread": "exit 1"})]
    bad = plan(wish(), blind)[1]
    assert (bad.index, bad.is_unread) == (None, True)
    assert "could not be read: exit 1" in bad.problem


def test_index_beside_resolve_is_reported_where_it_differs_and_not_followed() -> None:
    plans = plan(wish(gid_index=3), [end(1, (3,), (3,)), end(2, (5,), (5,))])
    assert indexes(plans) == [3, 5]
    assert [one.remark for one in plans] == ["", "the pin 3 differs from the resolved 5"]


def test_pin_is_given_to_all_where_every_port_can_use_it_and_refused_elsewhere() -> None:
    pinned = wish(gid_policy="pin", gid_index=5)
    assert indexes(plan(pinned, [end(1, (3, 5), (5,)), end(2, (5,), (3, 5))])) == [5, 5]
    bad = plan(pinned, [end(1, (3, 5), (5,)), end(2, (5,), (3,))])[1]
    assert bad.index is None
    assert "pinned index 5 is not usable: roceP2p1s0f0" in bad.problem


def test_unset_leaves_it_out_only_with_a_current_nccl() -> None:
    unset = wish(gid_policy="unset", gid_index=3)
    new = [end(n, (3,), (5,), nccl_version=(2, 29, 3)) for n in (1, 2)]
    assert indexes(plan(unset, new)) == [None, None]
    assert "gid_index = 3 is not used" in plan(unset, new)[0].remark
    old = plan(unset, [new[0], new[1]._replace(nccl_version=(2, 28, 9))])[1]
    assert "needs NCCL 2.29.3, found 2.28.9" in old.problem
    assert "install NCCL 2.30.7 on spark2" in old.remedy
    assert "unknown" in plan(unset, [new[0], new[1]._replace(nccl_version=None)])[1].problem


def test_the_index_is_no_part_of_what_ranks_must_agree_on() -> None:
    def built(*indexes: int) -> tuple[Any, ...]:
        places = tuple(place(n, gid_index=index) for n, index in enumerate(indexes, start=1))
        return engine_spec.build(engine_spec.Wanted(wish(), places, (), "run", {}))

    apart, moved = built(3, 5), built(3, 7)
    assert [spec.env["NCCL_IB_GID_INDEX"] for spec in apart] == ["3", "5"]
    assert len({spec.agreement for spec in (*apart, *moved)}) == 1


@pytest.mark.parametrize(
    ("fabric", "message"),
    [
        ({"gid_policy": "pin"}, "gid_policy = pin needs gid_index"),
        ({"gid_policy": "auto"}, "resolve"),
        ({"nccl": {"NCCL_IB_GID_INDEX": "3"}}, "differs between nodes and is found on each"),
        ({"nccl": {"NCCL_IB_GID_INDEX": ""}}, "differs between nodes and is found on each"),
    ],
)
def test_contradictions_never_reach_a_node(fabric: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        profile(fabric=fabric)
