"""Launch on simulated Sparks whose GID tables differ and move: every rank gets its own index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.fleet import Finished, Fleet

pytestmark = pytest.mark.testbed

HCA = ("rocep1s0f0", "roceP2p1s0f0")


def launch(fleet: Fleet, *options: str, hca: Sequence[str] = HCA, **fabric: Any) -> Finished:
    """Launch the light engine on the first two nodes."""
    profile = fleet.profile(2, fabric={"hca": list(hca), **fabric})
    return fleet.run("launch", "--cluster", "fleet", "--profile", profile, "--json", *options)


def newest(fleet: Fleet) -> list[str | None]:
    """``NCCL_IB_GID_INDEX`` of each rank, as its newest engine.json on the node holds it."""
    found = []
    for node in fleet.nodes[:2]:
        newest = "cat $(ls -td /home/spark/sparkserve/state/runs/*/ | head -n 1)engine.json"
        spec = json.loads(node.inside(["sh", "-c", newest]).stdout)
        found.append(spec["env"].get("NCCL_IB_GID_INDEX"))
    return found


def test_each_rank_gets_the_index_of_its_own_node_and_drift_is_followed(fleet: Fleet) -> None:
    fleet.nodes[1].set_fact(gid_shift=2)
    first = launch(fleet)
    assert first.code == 0, first.error
    assert newest(fleet) == ["3", "5"]
    notices = [e["message"] for e in first.events if e["kind"] == "notice"]
    (told,) = [text for text in notices if text.startswith("spark2: NCCL_IB_GID_INDEX=5: ")]
    assert "by address 10.77.1.12" in told
    assert "rocep1s0f0 {5}: 5 is RoCE v2 of 10.77.1.12 on enp1s0f0np0" in told
    assert "roceP2p1s0f0 {5}: 5 is RoCE v2 of " in told
    assert fleet.run("stop").code == 0
    fleet.nodes[0].set_fact(gid_shift=4)
    fleet.nodes[1].set_fact(gid_shift=0, gid_hole=True)
    second = launch(fleet)
    assert second.code == 0, second.error
    assert newest(fleet) == ["7", "4"]
    assert fleet.run("stop").code == 0


def test_dry_run_shows_every_index_with_its_reason(fleet: Fleet) -> None:
    fleet.nodes[1].set_fact(gid_shift=2)
    result = launch(fleet, "--dry-run").events[-1]["data"]
    assert [one["index"] for one in result["gid_indexes"]] == [3, 5]
    assert result["differences"]["env"]["NCCL_IB_GID_INDEX"] == ["3", "5"]
    assert "{3}" in result["gid_indexes"][0]["ports"][0]


@pytest.mark.parametrize("policy", ["resolve", "pin"])
def test_node_without_a_fitting_index_is_refused_before_anything_starts(
    fleet: Fleet, policy: str
) -> None:
    node = fleet.nodes[1]
    if policy == "resolve":
        # The address stays, but its RoCE v2 row is gone from one of the two ports.
        node.set_sys("class/infiniband/roceP2p1s0f0/ports/1/gid_attrs/types/3", "IB/RoCE v1\n")
        refused = launch(fleet)
        assert "no RoCE v2 row with an IPv4 address of the node on roceP2p1s0f0" in refused.error
        assert "rocep1s0f0 {3}" in refused.error
        assert "roceP2p1s0f0 {}" in refused.error
        assert "enP2p1s0f0np0 has its address but no RoCE v2 row" in refused.error
    else:
        node.set_fact(gid_hole=True)
        refused = launch(fleet, gid_policy="pin", gid_index=3)
        assert "index 3 does not exist; usable set is {4}" in refused.error
        assert "gid_policy=resolve" in refused.error
    assert refused.code == 4
    assert "spark2" in refused.error
    assert "spark1" not in refused.error.partition("hint")[0]
    assert fleet.engine_processes() == {}
    left = node.inside(["sh", "-c", "ls /home/spark/sparkserve/state/runs 2>/dev/null || :"])
    assert left.stdout == ""


def test_index_of_the_profile_that_differs_on_a_node_is_reported_and_not_followed(
    fleet: Fleet,
) -> None:
    fleet.nodes[1].set_fact(gid_shift=2)
    shown = launch(fleet, "--dry-run", gid_index=3)
    assert shown.code == 0, shown.error
    (warning,) = [
        e["data"]
        for e in shown.events
        if e["kind"] == "finding" and e["data"]["check_id"] == "RING.ROCE_GID"
        and e["data"]["outcome"] == "fail"
    ]  # fmt: skip
    assert (warning["node"], warning["severity"]) == ("spark2", "warning")
    assert "3 differs from the resolved 5" in warning["observed"]


def test_without_named_devices_nothing_is_set(fleet: Fleet) -> None:
    result = launch(fleet, "--dry-run", hca=()).events[-1]["data"]
    assert result["gid_indexes"] == []
    assert ["NCCL_IB_GID_INDEX" in rank["env"] for rank in result["ranks"]] == [False, False]
