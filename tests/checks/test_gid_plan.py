"""With a full profile the GID check says what a launch would do, from the nodes' own answers."""

from __future__ import annotations

from typing import Any

import pytest

from sparkserve.checks.check import judge
from sparkserve.checks.gids import CHECKS, planned
from sparkserve.checks.scene import Scene
from sparkserve.errors import CheckFailed
from sparkserve.facts.reader import understand
from sparkserve.facts.registry import READERS
from sparkserve.model.event import Event
from sparkserve.model.facts import Unobserved
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading
from sparkserve.ops.doors import Emitter
from sparkserve.ops.launch_gids import refuse_unplanned, tell, with_index
from tests.checks.test_fabric import sysfs
from tests.ops.told import Heard
from tests.readings import holds, told
from tests.scenes import cluster, facts, place, profile

SYSFS = "/sys/class/infiniband/*/ports/*/..."
MAPPED = "0000:0000:0000:0000:0000:ffff:c0a8:000{:x}"
"""GID of 192.168.0.0/28; the last digit is filled in."""
ULA = "fd00:0000:0000:0000:4ebb:47ff:fe00:0b02"


def tables(number: int, *indexes: int, device: str = "rocep1s0f0") -> Reading:
    """The node's answer: an IPv6 row at 1 and its address at the indexes."""
    rows = {1: (ULA, "RoCE v2")}
    rows |= {index: (MAPPED.format(10 + number), "RoCE v2") for index in indexes}
    return holds(SYSFS, sysfs(device, "enp1s0f0np0", rows), f"spark{number}")


def scene(*readings: Reading, missing: str | None = None, **fabric: Any) -> Scene:
    """Two nodes with the fabric addresses 192.168.0.11 and .12 on enp1s0f0np0."""
    wish = profile(parallel={"tp": 2}, fabric={"hca": ["rocep1s0f0"], **fabric})
    seen = {f"spark{n}": facts(n) for n in (1, 2)}
    if missing:
        seen[missing] = seen[missing].model_copy(update={"values": {}})
    return Scene(wish, cluster(2), seen, None, understand(readings, READERS).observations)


def judged(shown: Scene) -> list[Finding]:
    return list(judge(CHECKS, shown))


def test_passing_nodes_say_which_index_and_why() -> None:
    found = judged(scene(tables(1, 3), tables(2, 5)))
    assert [(f.node, f.outcome) for f in found] == [("spark1", "pass"), ("spark2", "pass")]
    assert found[1].observed == (
        "NCCL_IB_GID_INDEX=5: lowest of {5} on rocep1s0f0 by address 192.168.0.12; "
        "rocep1s0f0 {5}: 5 is RoCE v2 of 192.168.0.12 on enp1s0f0np0"
    )


def test_profiles_index_that_differs_is_a_warning_under_resolve_and_a_failure_under_pin() -> None:
    shown = (tables(1, 3), tables(2, 5))
    warned = judged(scene(*shown, gid_index=3))[1]
    assert (warned.node, warned.verdict, warned.blocks) == ("spark2", "WARN", False)
    assert "3 differs from the resolved 5" in warned.observed
    assert "NCCL_IB_GID_INDEX=5" in warned.why
    failed = judged(scene(*shown, gid_index=3, gid_policy="pin"))[1]
    assert (failed.node, failed.verdict, failed.exit_code) == ("spark2", "FAIL", 4)
    assert "usable set is {5}" in failed.observed
    assert "gid_policy=resolve" in failed.fix
    assert failed.fix.endswith("(here 5)")


def test_node_without_a_usable_row_fails_with_exit_4_and_the_remedy() -> None:
    failed = judged(scene(tables(1, 3), tables(2)))[1]
    assert (failed.node, failed.blocks, failed.exit_code) == ("spark2", True, 4)
    assert "rocep1s0f0 {}" in failed.observed
    assert "enp1s0f0np0 has its address but no RoCE v2 row" in failed.fix


def test_address_that_the_node_no_longer_has_makes_its_row_unusable() -> None:
    stale = {3: (MAPPED.format(9), "RoCE v2"), 6: (MAPPED.format(12), "RoCE v2")}
    second = holds(SYSFS, sysfs("rocep1s0f0", "enp1s0f0np0", stale), "spark2")
    assert [one.index for one in planned(scene(tables(1, 3), second))] == [3, 6]


def test_unread_tables_are_unknown_to_doctor_and_refused_by_a_launch() -> None:
    shown = scene(tables(1, 3))
    found = judged(shown)
    assert [(f.node, f.outcome) for f in found] == [("spark1", "pass"), ("spark2", "unknown")]
    with pytest.raises(CheckFailed, match="spark2: the RDMA ports could not be read") as raised:
        refuse_unplanned(planned(shown), found)
    assert (raised.value.exit_code, raised.value.findings) == (4, (found[1],))


def test_unread_addresses_are_refused_too() -> None:
    shown = scene(tables(1, 3), tables(2, 3))
    blind = facts(2, network_addresses=Unobserved(reason="ip: not found"))
    shown = Scene(shown.wish, shown.fleet, {**shown.facts, "spark2": blind}, None,
                  shown.observations)  # fmt: skip
    assert "addresses could not be read: ip: not found" in planned(shown)[1].problem


def test_nodes_that_say_they_have_no_rdma_are_told_nothing() -> None:
    none = [holds(SYSFS, "no RDMA devices\n", f"spark{n}") for n in (1, 2)]
    shown = scene(*none)
    assert [(one.index, one.problem) for one in planned(shown)] == [(None, ""), (None, "")]
    assert [f.outcome for f in judged(shown)] == ["pass", "pass"]
    refuse_unplanned(planned(shown), ())


def test_node_that_did_not_answer_is_not_blamed_for_its_tables() -> None:
    found = judged(scene(tables(1, 3), missing="spark2"))
    assert [f.node for f in found] == ["spark1"]


def test_nothing_is_said_where_no_node_was_asked() -> None:
    """As in `sparkserve plan`, which judges a profile before there are nodes."""
    shown = scene()
    unasked = Scene(shown.wish, shown.fleet, {}, None, ())
    assert (planned(unasked), judged(unasked)) == ((), [])


def test_running_engine_with_an_index_that_has_moved_is_found_beside_the_plan() -> None:
    env = told("container env", "NCCL_IB_GID_INDEX=3\n", "spark2", format="env")
    found = judged(scene(tables(1, 3), tables(2, 5), env))
    assert [(f.node, f.outcome) for f in found] == [
        ("spark1", "pass"), ("spark2", "pass"), ("spark2", "fail"),
    ]  # fmt: skip
    assert "usable set is {5}" in found[2].observed


def test_unset_goes_by_the_library_of_the_runtime() -> None:
    shown = (tables(1, 3), tables(2, 5))
    libraries = [
        told("nccl libraries", f"library path=/v/libnccl.so.2 pid={pid} version={v}\n", f"spark{n}")
        for n in (1, 2) for pid, v in (("", "2.30.7"), ("77", "2.27.3"))
    ]  # fmt: skip
    plans = planned(scene(*shown, *libraries, gid_policy="unset"))
    assert [(one.index, one.problem) for one in plans] == [(None, ""), (None, "")]
    old = planned(scene(*shown, libraries[1], libraries[3], gid_policy="unset"))
    assert ["found 2.27.3" in one.problem for one in old] == [True, True]


def test_a_launch_tells_every_index_and_gives_it_to_the_nodes_own_place() -> None:
    plans = planned(scene(tables(1, 3), tables(2, 5)))
    assert [with_index(place(n), plans).gid_index for n in (1, 2, 3)] == [3, 5, None]
    heard = Heard()
    tell(plans, Emitter([heard], lambda: facts(1).collected_at))
    events: list[Event] = heard.events
    assert [(event.node, event.data["gid_index"]) for event in events] == [
        ("spark1", 3), ("spark2", 5),
    ]  # fmt: skip
    assert "spark2: NCCL_IB_GID_INDEX=5: lowest of {5}" in events[1].message
    assert "rocep1s0f0 {5}" in events[1].message
