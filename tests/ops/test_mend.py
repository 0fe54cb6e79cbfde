"""What ``doctor --fix`` leaves behind: a journal that knows every change before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from sparkserve.errors import ConfigError, UnreachableError
from sparkserve.model.cluster import Cluster
from sparkserve.model.mend import Change
from sparkserve.ops import mend
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.paths import state_dir
from sparkserve.transport.host import GroupResult, Result
from tests.ops.told import Heard, ToldHost
from tests.scenes import cluster

AT = datetime(2026, 11, 30, tzinfo=UTC)


def change(node: str, value: int = 9000, was: int = 1500) -> Change:
    def argv(mtu: int) -> tuple[str, ...]:
        return ("ip", "link", "set", "dev", "enp1s0f0np0", "mtu", str(mtu))

    return Change(mend="mtu", node=node, title="MTU", argv=argv(value), undo_argv=argv(was))


@dataclass
class Node(ToldHost):
    """A node that looks into the journal whenever it is asked to do something."""

    code: int = 0
    interrupt: bool = False
    listed: list[int] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float) -> Result:
        self.listed.append(len(mend.journal("test").entries))
        self.asked.append(tuple(argv))
        if self.interrupt:
            raise KeyboardInterrupt
        return Result(self.name, "", "exited", self.code, "", "no permission", 0.0)


def doors(hosts: dict[str, Node]) -> Doors:
    def connect(asked: Cluster) -> GroupResult[Node]:
        names = [node.name for node in asked.nodes]
        return GroupResult(
            {name: hosts[name] for name in names if name in hosts},
            {name: UnreachableError(name, "gone") for name in names if name not in hosts},
        )

    return Doors(connect=connect, now=lambda: AT)  # type: ignore[arg-type]


def applied(hosts: dict[str, Node], *changes: Change) -> mend.FixResult:
    emitter = Emitter([Heard()], lambda: AT)
    return mend.apply("test", changes, hosts, emitter, doors(hosts))


def undone(hosts: dict[str, Node]) -> mend.FixResult:
    return mend.take_back(cluster(2), doors(hosts), Emitter([Heard()], lambda: AT))


def test_a_change_is_written_down_before_it_is_made() -> None:
    hosts = {"spark1": Node("spark1")}
    result = applied(hosts, change("spark1"))
    assert hosts["spark1"].listed == [1]
    assert result.exit_code == 0
    assert [entry.change for entry in mend.journal("test").entries] == [change("spark1")]


def test_undo_runs_the_old_values_newest_first_and_forgets_them() -> None:
    hosts = {"spark1": Node("spark1"), "spark2": Node("spark2")}
    applied(hosts, change("spark1"), change("spark2"))
    applied(hosts, change("spark1", value=4200, was=9000))
    result = undone(hosts)
    assert [argv[-1] for argv in hosts["spark1"].asked] == ["9000", "4200", "9000", "1500"]
    assert [argv[-1] for argv in hosts["spark2"].asked] == ["9000", "1500"]
    assert result.exit_code == 0
    assert mend.journal("test").entries == ()
    assert undone(hosts).changes == ()


def test_ctrl_c_leaves_what_was_begun_in_the_journal() -> None:
    with pytest.raises(KeyboardInterrupt):
        applied({"spark1": Node("spark1", interrupt=True)}, change("spark1"))
    assert len(mend.journal("test").entries) == 1


def test_a_change_that_fails_is_told_and_hides_no_other_node() -> None:
    hosts = {"spark1": Node("spark1", code=1), "spark2": Node("spark2")}
    result = applied(hosts, change("spark1"), change("spark2"))
    assert result.done == (change("spark2").id,)
    assert len(result.errors) == 1
    assert "no permission" in result.errors[0]
    assert result.errors[0].count("MTU") == result.errors[0].count("spark1") == 1
    assert result.exit_code == 1


def test_a_change_made_again_stands_in_the_journal_once() -> None:
    hosts = {"spark1": Node("spark1")}
    applied(hosts, change("spark1"))
    applied(hosts, change("spark1"))
    assert [entry.change for entry in mend.journal("test").entries] == [change("spark1")]
    assert undone(hosts).done == (change("spark1").id,)


def test_a_node_that_is_away_keeps_its_entry() -> None:
    hosts = {"spark1": Node("spark1"), "spark2": Node("spark2")}
    applied(hosts, change("spark1"), change("spark2"))
    result = undone({"spark1": hosts["spark1"]})
    assert result.exit_code == 1
    assert "gone" in result.errors[0]
    assert [entry.change.node for entry in mend.journal("test").entries] == ["spark2"]


def test_a_node_that_left_the_cluster_is_told_with_its_command() -> None:
    hosts = {"spark9": Node("spark9")}
    applied(hosts, change("spark9"))
    result = undone(hosts)
    assert "mtu 1500" in result.errors[0]
    assert len(mend.journal("test").entries) == 1


def test_a_damaged_journal_is_named_and_not_overwritten() -> None:
    path = state_dir() / "mends" / "test.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        applied({"spark1": Node("spark1")}, change("spark1"))
    assert path.read_text() == "{"


def test_names_of_mends_are_checked_before_anything_is_read() -> None:
    assert mend.known_names(["mtu,min-free", "mtu"]) == ("mtu", "min-free")
    assert mend.known_names(["all"]) == ("mtu", "ip-forward", "min-free", "oom-killer")
    assert mend.known_names([]) == ()
    with pytest.raises(ConfigError, match=r"no mend 'mtus'; there are: mtu, .*all"):
        mend.known_names(["mtus"])
