"""What a stop says of the ranks as it found them."""

from __future__ import annotations

import json

import pytest

from sparkserve.ops import stop
from sparkserve.ops.doors import Emitter, utc_now
from tests.ops.told import Heard, ToldHost
from tests.report import runs


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (("running", "running"), ["running", "running"]),
        # The guards end each other: the second node is asked when the first has stopped it.
        (("running", "stopped"), ["running", "running"]),
        (("stopping", "running"), ["running", "running"]),
        (("stopped", "stopped"), ["stopped", "stopped"]),
        (("running", "failed"), ["running", "failed"]),
        (("absent", "running"), ["absent", "running"]),
    ],
)
def test_rank_ended_by_this_very_stop_was_running(
    told: tuple[str, str], expected: list[str]
) -> None:
    hosts = {
        name: ToldHost(name, [], output=json.dumps({"was": was, "survivors": []}))
        for name, was in zip(("spark1", "spark2"), told, strict=True)
    }
    heard = Heard()
    record = runs.record(2, pythons={"spark1": "/py", "spark2": "/py"})
    ended = stop.stop_ranks(hosts, record, Emitter([heard], utc_now), gentle=True)
    assert [node.was for node in ended] == expected
    assert all(event.data["clean"] for event in heard.events)
