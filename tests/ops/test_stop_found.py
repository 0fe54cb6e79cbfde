"""A run that nothing here knows: stopped when a node names it, never guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from sparkserve import clusters, runs
from sparkserve.errors import ConfigError
from sparkserve.ops.doors import Doors
from sparkserve.ops.run_choice import RunChoice
from sparkserve.ops.stop import StopRequest, run
from sparkserve.transport.host import GroupResult, Result

HELD = json.dumps({"run_id": "2026-a", "pid": 7, "run_dir": "/r/2026-a", "python": "/py"})


class Node:
    """A node that answers the holder probe with a given text and status."""

    name = "local"

    def __init__(self, text: str, status: int = 0) -> None:
        self.text = text
        self.status = status
        self.stopped: list[Sequence[str]] = []

    def script(self, text: str, *, timeout_s: float) -> Result:
        marker = re.search(r"@@sparkserve-[0-9a-f]+", text)
        assert marker is not None
        begin, end = f"{marker[0]} begin runtime.holder", f"{marker[0]} end runtime.holder"
        return self._result(f"\n{begin}\n{self.text}\n{end} {self.status}\n")

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float) -> Result:
        self.stopped.append(argv)
        return self._result('{"was": "running", "ended": 0, "survivors": []}')

    def _result(self, stdout: str) -> Result:
        return Result(self.name, "", "exited", 0, stdout, "", 0.1)

    def close(self) -> None:
        pass


class Silent:
    def event(self, event: object) -> None:
        pass


def stop(node: Node, run_id: str | None = None) -> Any:
    doors = Doors(connect=lambda cluster: GroupResult({node.name: node}, {}))  # type: ignore[dict-item]
    return run(StopRequest(RunChoice(run_id)), doors, Silent())


def test_run_that_holds_the_node_is_stopped_with_what_the_node_says() -> None:
    node = Node(HELD)
    result = stop(node)
    assert (result.run_id, result.clean) == ("2026-a", True)
    assert list(node.stopped[0]) == [
        "/py", "-P", "-m", "sparkserve.node", "stop", "--run-dir", "/r/2026-a",
    ]  # fmt: skip


def test_node_that_cannot_tell_is_not_taken_for_idle() -> None:
    result = stop(Node("sed: not found", status=127))
    assert not result.clean
    assert "cannot tell what it serves: exit 127" in str(result.nodes[0].error)


def test_idle_node_is_clean() -> None:
    assert stop(Node("{}")).clean


def test_other_id_than_the_held_one_is_unknown_and_stops_nothing() -> None:
    node = Node(HELD)
    with pytest.raises(ConfigError):
        stop(node, "2027")
    assert node.stopped == []


def test_ambiguous_id_stays_ambiguous_whatever_the_node_holds() -> None:
    clusters.set_default(None)
    runs.create("2026-a")
    runs.create("2026-b")
    node = Node(HELD)
    with pytest.raises(ConfigError):
        stop(node, "2026")
    assert node.stopped == []
