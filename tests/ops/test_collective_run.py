"""The all-reduce is not run where it could not work or would harm, and the reason is told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sparkserve.checks.scene import Scene
from sparkserve.facts import runtime
from sparkserve.model.facts import Unobserved
from sparkserve.ops.collective_run import measure_all_reduce
from sparkserve.transport.host import Host
from tests.scenes import cluster, facts, profile

NO_HOSTS = cast("dict[str, Host]", {"spark1": None, "spark2": None})


def reason(scene: Scene, hosts: dict[str, Host] = NO_HOSTS) -> str:
    bundle = measure_all_reduce(scene, hosts)
    assert bundle.readings == ()
    (unread,) = bundle.unread
    return unread.reason


def pair(**changes: Any) -> Scene:
    nodes = {"spark1": facts(1), "spark2": facts(2, **changes)}
    return Scene(profile(parallel={"tp": 2}), cluster(2), nodes)


def test_without_a_profile_nothing_says_how_ranks_meet() -> None:
    assert "no profile" in reason(Scene(None, None))


def test_one_node_has_nobody_to_exchange_with() -> None:
    scene = Scene(profile(), cluster(1), {"spark1": facts(1)})
    assert "one node" in reason(scene)


def test_node_that_was_not_reached_is_named() -> None:
    assert reason(pair(), {"spark1": NO_HOSTS["spark1"]}) == "spark2 was not reached"


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (runtime.HolderFacts(run_id="20261201-a", guard_pid=7), "spark2 serves run 20261201-a"),
        (Unobserved(reason="no answer"), "nobody can tell whether it serves"),
    ],
)
def test_serving_or_unknown_node_is_left_in_peace(holder: Any, words: str) -> None:
    assert words in reason(pair(runtime_holder=holder))
