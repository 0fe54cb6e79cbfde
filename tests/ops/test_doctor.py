"""The doctor reads each node once, judges what it got, and says what it could not get."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sparkserve import clusters
from sparkserve.checks.registry import ALL, of_stage
from sparkserve.errors import ConfigError, UnreachableError
from sparkserve.model.cluster import Cluster
from sparkserve.model.diagnosis import Bundle, DoctorResult
from sparkserve.model.finding import FaultClass, Finding, Outcome, Severity
from sparkserve.model.reading import Reading
from sparkserve.ops import bundle, doctor
from sparkserve.ops.doctor_choice import catalogue, choose
from sparkserve.ops.doors import Doors
from sparkserve.ops.target import Target
from sparkserve.transport.host import GroupResult, Result
from tests.ops.told import Heard, ToldHost
from tests.scenes import cluster

AT = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
Answers = Mapping[str, tuple[int, str]]
HEALTHY: Answers = {
    "host.identity": (
        0,
        "hostname=x\nuser=root\nhome=/root\nroot=/root/sparkserve\narchitecture=aarch64\n"
        f"kernel=6.17.0-1031-nvidia\ncpu_count=20\ntime_s={AT.timestamp()}\nssh_address=10.0.0.11\n",
    ),
    "storage.root": (
        0,
        "writable yes /root\nFilesystem 1024-blocks Used Available Capacity Mounted on\n"
        "/dev/nvme0n1p2 3900000000 1000000000 2900000000 26% /\n",
    ),
    "runtime.holder": (0, "{}\n"),
}
SERVING: Answers = {"runtime.holder": (0, '{"run_id": "r1", "pid": 7, "start_ticks": 9}\n')}


@dataclass
class Node(ToldHost):
    """A node that answers the questions a test has answers for, and remembers the script."""

    answers: Answers = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    status: str = "exited"
    closed: bool = False

    def script(self, text: str, *, timeout_s: float) -> Result:
        self.scripts.append(text)
        found = re.search(r"(@@sparkserve-[0-9a-f]+) begin", text)
        assert found is not None
        parts = [
            f"\n{found[1]} begin {name}\n{answer}\n{found[1]} end {name} {status}\n"
            for name, (status, answer) in self.answers.items()
        ]
        status = self.status
        return Result(self.name, "", status, 0, "".join(parts), "", 0.1)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True


def examined(
    nodes: Mapping[str, Answers | None], look: Callable[[Node], None] = lambda _: None,
    **options: object,
) -> tuple[doctor.Examination, dict[str, Node]]:  # fmt: skip
    """Look at a saved cluster of so many nodes; None = cannot be reached."""
    clusters.save(cluster(len(nodes)))
    hosts = {name: Node(name, answers=told) for name, told in nodes.items() if told is not None}
    for host in hosts.values():
        look(host)

    def connect(_: Cluster) -> GroupResult[Node]:
        away = [name for name, told in nodes.items() if told is None]
        return GroupResult(
            hosts, {n: UnreachableError(n, "no answer", hint=f"ping {n}") for n in away}
        )

    request = doctor.DoctorRequest(Target(cluster="test"), "/py", **options)  # type: ignore[arg-type]
    made = Doors(connect=connect, now=lambda: AT)  # type: ignore[arg-type]
    return doctor.run(request, made, Heard()), hosts


def of(found: doctor.Examination, check_id: str) -> list[tuple[str | None, str]]:
    return [(f.node, f.verdict) for f in found.result.findings if f.check_id == check_id]


def finding(fault_class: FaultClass, outcome: Outcome = "fail", severity: Severity = "error") -> (
    Finding
):  # fmt: skip
    return Finding(
        code="C", check_id="X", title="x", node="n", outcome=outcome, severity=severity,
        fault_class=fault_class, verdict="FAIL",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([finding("hardware", "pass")], 0),
        ([finding("config")], 1),
        ([finding("engine")], 1),
        ([finding("memory"), finding("config")], 5),
        ([finding("memory"), finding("hardware")], 4),
        ([finding("hardware"), finding("reach")], 3),
        ([finding("reach", severity="warning"), finding("memory")], 5),
        ([finding("hardware", severity="warning")], 0),
        ([finding("hardware", "unknown")], 1),
        ([finding("hardware", "unknown"), finding("hardware", "pass")], 0),
        ([finding("hardware", "skipped")], 1),
        ([], 1),
    ],
)
def test_the_worst_class_that_failed_is_the_exit_code(findings: list[Finding], code: int) -> None:
    assert DoctorResult(findings=tuple(findings)).exit_code == code


def test_strict_fails_at_warnings_and_unknowns_but_not_at_notes() -> None:
    def strict(*findings: Finding) -> int:
        return DoctorResult(findings=findings, strict=True).exit_code

    well = finding("hardware", "pass")
    assert strict(well, finding("hardware", severity="warning")) == 1
    assert strict(well, finding("hardware", "unknown")) == 1
    assert strict(well, finding("hardware", severity="info")) == 0
    assert strict(well) == 0


def test_each_node_is_asked_once_and_left_closed() -> None:
    found, hosts = examined({"spark1": HEALTHY, "spark2": HEALTHY})
    assert [len(host.scripts) for host in hosts.values()] == [1, 1]
    assert all(host.closed for host in hosts.values())
    assert of(found, "DISK.FREE") == [("spark1", "PASS"), ("spark2", "PASS")]
    assert found.result.exit_code == 0


def test_a_node_that_cannot_be_reached_hides_no_other() -> None:
    found, _ = examined({"spark1": HEALTHY, "spark2": None})
    assert found.result.exit_code == 3
    assert sorted(of(found, "SSH.REACHABLE")) == [("spark1", "PASS"), ("spark2", "FAIL")]
    assert of(found, "DISK.FREE") == [("spark1", "PASS")]
    away = [f for f in found.result.findings if f.node == "spark2"]
    assert [f.check_id for f in away] == ["SSH.REACHABLE"]


def test_a_node_without_a_shell_is_one_that_cannot_be_used() -> None:
    found, _ = examined({"spark1": HEALTHY, "spark2": {}})
    (reached,) = (f for f in found.result.findings if f.node == "spark2")
    assert "no shell that runs scripts" in reached.observed
    assert found.result.exit_code == 3


def test_a_connection_that_breaks_is_told_as_such() -> None:
    def cut(host: Node) -> None:
        host.status = "lost" if host.name == "spark2" else "exited"

    found, _ = examined({"spark1": HEALTHY, "spark2": HEALTHY}, cut)
    (reached,) = (f for f in found.result.findings if f.node == "spark2")
    assert "connection was lost" in reached.observed


def test_an_answer_that_ends_early_is_listed_and_not_taken_for_nothing() -> None:
    found, _ = examined({"spark1": HEALTHY})
    cut = {one.what for one in found.result.unread if "ended before it" in one.reason}
    assert "probe memory.meminfo" in cut
    assert "probe storage.root" not in cut


def test_a_node_that_serves_is_well_for_the_doctor_and_busy_for_a_launch() -> None:
    serving = {**HEALTHY, **SERVING}
    found, _ = examined({"spark1": serving})
    assert of(found, "NODE.IDLE") == [("spark1", "PASS")]
    assert found.result.exit_code == 0
    busy, _ = examined({"spark1": serving}, checks=of_stage("launch"), for_launch=True)
    assert of(busy, "NODE.IDLE") == [("spark1", "FAIL")]
    assert busy.result.exit_code == 1


def test_what_was_saved_is_judged_as_what_was_seen(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    found, _ = examined({"spark1": HEALTHY, "spark2": None, "spark3": HEALTHY}, save=folder)
    again = doctor.examined(bundle.load(folder))
    assert again.result.findings == found.result.findings
    assert again.result.exit_code == found.result.exit_code == 3
    assert [node.name for node in again.scene.cluster.nodes] == ["spark1", "spark2", "spark3"]


def test_a_taken_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="exists already"):
        examined({"spark1": HEALTHY}, save=tmp_path)


def test_a_bundle_of_another_version_is_an_error() -> None:
    strange = Reading(text='{"nodes": []}', what="sparkserve cluster")
    with pytest.raises(ConfigError, match="profile or cluster cannot be read"):
        doctor.examined(Bundle(readings=(strange,)))


def test_texts_of_unknown_kind_are_listed_and_never_guessed() -> None:
    meminfo = "MemTotal:       127600000 kB\nMemAvailable:   120000000 kB\n"
    found = doctor.examined(Bundle(readings=(Reading(text=meminfo, what="my notes"),)))
    assert found.result.findings == ()
    (unread,) = found.result.unread
    assert (unread.what, unread.reason) == ("my notes", "no reader knows this kind of text")


def test_checks_are_chosen_by_theme_id_and_code() -> None:
    def chosen(*only: str, stage: str | None = None) -> set[str]:
        return {check.id for check in choose(stage, only)} - {"SSH.REACHABLE"}

    assert chosen("RING.MTU") == {"RING.MTU"}
    assert "RING.MTU" in chosen("NET_ACTIVE_MTU_LOW")
    assert chosen("ring.mtu,disk.free") == {"RING.MTU", "DISK.FREE"}
    assert {"RING.MTU", "RING.LINK_UP"} <= chosen("fabric")
    assert chosen("RING.MTU,RING.LINK_UP", stage="launch") == {"RING.LINK_UP"}
    assert len(choose(None, ())) == len(ALL)


@pytest.mark.parametrize(
    ("stage", "only", "message"),
    [
        ("breakfast", (), r"no stage 'breakfast'; there are: doctor, profile"),
        (None, ("RING.MTUS",), r"no theme, check or code 'RING\.MTUS'; near it: RING\.MTU"),
        (None, ("xyzzy",), r"no theme, check or code 'xyzzy'; themes: launch"),
        ("eval", ("RING.MTU",), r"no check RING\.MTU of stage eval"),
    ],
)
def test_a_wrong_choice_names_what_there_is(
    stage: str | None, only: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(stage, only)


def test_every_check_explains_itself() -> None:
    for row in catalogue():
        assert row["why"], row["id"]
        assert row["fix"], row["id"]
        assert row["symptom"], row["id"]
    assert len({row["id"] for row in catalogue()}) == len(ALL)
