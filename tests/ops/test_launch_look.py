"""A refused launch keeps what it had read, and a node that serves is busy, not broken."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sparkserve.checks.scene import Scene
from sparkserve.errors import BusyError, CheckFailed
from sparkserve.model.diagnosis import Bundle
from sparkserve.model.finding import FaultClass, Finding
from sparkserve.model.reading import Reading
from sparkserve.ops import bundle
from sparkserve.ops.doors import Emitter
from sparkserve.ops.launch_look import Look, refuse_failures, refused_folder
from tests.ops.told import Heard

AT = datetime(2026, 11, 30, tzinfo=UTC)


def finding(check_id: str, node: str = "spark1", fault_class: FaultClass = "memory") -> Finding:
    return Finding(
        code="C", check_id=check_id, title="t", node=node, outcome="fail", severity="error",
        fault_class=fault_class, verdict="FAIL", observed=f"{check_id} is bad", fix="mend it",
    )  # fmt: skip


def refused(*findings: Finding, text: str = "MemTotal: 1 kB\n") -> Heard:
    read = Bundle(readings=(Reading(text=text, node="spark1", path="/proc/meminfo"),))
    heard = Heard()
    refuse_failures(Look(read, {}, findings, Scene(None, None)), findings, Emitter([heard], utc))
    return heard


def utc() -> datetime:
    return AT


def test_what_was_read_is_kept_and_the_newest_refusal_replaces_it() -> None:
    for text in ("MemTotal: 1 kB\n", "MemTotal: 2 kB\n"):
        with pytest.raises(CheckFailed, match="spark1: MEM is bad") as raised:
            refused(finding("MEM"), text=text)
        assert (raised.value.exit_code, raised.value.hint) == (5, "mend it")
        assert [reading.text for reading in bundle.load(refused_folder()).readings] == [text]


def test_a_launch_says_how_to_look_at_it() -> None:
    heard = Heard()
    seen = Look(Bundle(readings=()), {}, (), Scene(None, None))
    with pytest.raises(CheckFailed):
        refuse_failures(seen, [finding("MEM")], Emitter([heard], utc))
    assert [event.message for event in heard.events] == [
        f"what was read: sparkserve doctor --replay {refused_folder()}"
    ]


def test_what_follows_from_serving_is_not_told_beside_it() -> None:
    with pytest.raises(BusyError) as raised:
        refused(finding("NODE.IDLE", fault_class="config"), finding("MEM"))
    assert raised.value.message == "spark1: NODE.IDLE is bad"
    with pytest.raises(CheckFailed, match="spark2: MEM is bad"):
        refused(finding("NODE.IDLE", fault_class="config"), finding("MEM", node="spark2"))


def test_nothing_is_kept_where_nothing_failed() -> None:
    assert refused().events == []
    assert not refused_folder().exists()
