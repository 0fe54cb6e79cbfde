"""``sparkserve doctor``: what is wrong, on which node, and what mends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkserve.checks.check import Check
from sparkserve.checks.diagnose import diagnose
from sparkserve.checks.registry import ALL
from sparkserve.checks.scene import Scene
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster
from sparkserve.model.diagnosis import Bundle, DoctorResult, Unread
from sparkserve.model.event import Observer
from sparkserve.model.finding import Finding, Outcome
from sparkserve.model.mend import FixResult
from sparkserve.model.reading import Reading
from sparkserve.ops import bundle as bundles
from sparkserve.ops import mend
from sparkserve.ops.baselines import baseline_readings, remember
from sparkserve.ops.collective_run import measure_all_reduce
from sparkserve.ops.doctor_live import Subject, no_connection, read_cluster, wish_readings
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.pair_runs import expected_s, measure, tests_of
from sparkserve.ops.shard_commands import named
from sparkserve.ops.target import Seen, Target, resolve_cluster, resolve_to_look
from sparkserve.transport.host import GroupResult, Host
from sparkserve.units import format_duration

_PHASES = 3
_IDLE = "NODE.IDLE"
_TOO_BIG = "MEM_TEST_TOO_BIG"
_REQUEST = "request"
"""``what`` of the reading that tells what the user asked for."""


@dataclass(frozen=True)
class DoctorRequest:
    """What the user asked for."""

    target: Target
    this_python: str
    """Interpreter that stands for ``engine.python = "this"``."""
    checks: tuple[Check, ...] = ALL
    for_launch: bool = False
    """A node that serves is then a fault, as it is for a launch."""
    strict: bool = False
    save: Path | None = None
    """Folder to write what was read to; must not hold anything yet."""
    fix: tuple[str, ...] = ()
    """Names of mends to apply."""
    dry_run: bool = False
    """Only show what the mends would do."""
    test_bytes: int | None = None
    """Measure between the nodes with buffers of so many bytes; None = do not measure."""
    collective: bool = False
    """Measure an all-reduce over all nodes besides."""


@dataclass(frozen=True)
class Examination:
    """What was found, and what the checks looked at."""

    result: DoctorResult
    scene: Scene
    fix: FixResult | None = None


def run(request: DoctorRequest, doors: Doors, observer: Observer) -> Examination:
    """Read all nodes and judge them; changes nothing but what ``fix`` names.

    After mends the nodes are read and judged anew.

    Raises:
        ConfigError: profile, cluster or options are wrong, or the folder to save to is taken.
        KeyboardInterrupt: mends that were begun stand in the journal, nothing else was changed.
    """
    if request.save is not None:
        bundles.refuse_taken(request.save)
    seen = resolve_to_look(request.target, doors.environment)
    emitter = Emitter([observer], doors.now)
    for reason in seen.reasons:
        emitter.emit("notice", reason)
    subject = _subject(request, seen)
    total = _PHASES + (3 if request.fix and not request.dry_run else 0)
    total += request.test_bytes is not None
    phases = _Phases(emitter, total, len(subject.cluster.nodes))
    phases.begin("connect")
    with connected(subject.cluster, doors) as group:
        phases.begin("read")
        read = _read(subject, group, doors)
        if request.test_bytes is not None:
            phases.begin("measure")
            read = _measured(read, request, group, emitter)
        phases.begin("judge")
        if request.save is not None:
            bundles.save(request.save, read, doors.now())
        found = examined(read, request.checks, for_launch=request.for_launch, strict=request.strict)
        _remember(found)
        if not request.fix:
            return found
        return _mend(request, subject, found, _Ward(group, doors, phases))


@dataclass(frozen=True)
class _Ward:
    """The connected nodes, and whom to tell."""

    group: GroupResult[Host]
    doors: Doors
    phases: _Phases


def _mend(request: DoctorRequest, subject: Subject, found: Examination, ward: _Ward) -> Examination:
    changes = mend.wanted_changes(found.scene, found.result.findings, request.fix)
    cluster = subject.cluster.name
    if request.dry_run or not changes:
        fix = FixResult(verb="fix", changes=changes, dry_run=request.dry_run)
        return replace(found, fix=fix)
    hosts = ward.group.values_by_node
    ward.phases.begin("mend")
    fix = mend.apply(cluster, changes, hosts, ward.phases.emitter, ward.doors)
    ward.phases.begin("read again")
    read = _read(subject, ward.group, ward.doors)
    ward.phases.begin("judge again")
    again = examined(read, request.checks, for_launch=request.for_launch, strict=request.strict)
    return replace(again, fix=fix)


def undo(target: Target, doors: Doors, observer: Observer) -> FixResult:
    """Take back what ``fix`` changed on a cluster.

    Raises:
        ConfigError: no such cluster, or a damaged journal.
    """
    file, _ = resolve_cluster(target)
    return mend.take_back(file.cluster, doors, Emitter([observer], doors.now))


def examined(
    bundle: Bundle, checks: Sequence[Check] = ALL, *, for_launch: bool = False, strict: bool = False
) -> Examination:
    """Judge texts, wherever they come from, without touching any machine.

    Raises:
        ConfigError: the texts' own profile or cluster is of another version.
    """
    try:
        diagnosis = diagnose(bundle.readings, checks)
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"the bundle's profile or cluster cannot be read: {first}") from error
    findings, scene = diagnosis.findings, diagnosis.scene
    result = DoctorResult(
        findings=findings if for_launch else _while_serving(findings, checks),
        unread=(*bundle.unread, *(_unread(reading) for reading in diagnosis.unread)),
        cluster=scene.fleet,
        profile=scene.wish.name if scene.wish else None,
        strict=strict,
    )
    return Examination(result, scene)


def _remember(found: Examination) -> None:
    """Keep the records of nodes on which nothing failed."""
    cluster = found.scene.fleet
    if cluster is not None:
        sick = {finding.node for finding in found.result.findings if finding.blocks}
        well = [node.name for node in cluster.nodes if node.name not in sick]
        remember(cluster, found.scene, well)


def _subject(request: DoctorRequest, seen: Seen) -> Subject:
    profile = seen.resolved.profile.profile if seen.resolved else None
    return Subject(
        cluster=seen.cluster,
        profile=profile,
        this_python=request.this_python,
        named=named(request.target, profile.name) if profile else None,
    )


@contextlib.contextmanager
def connected(cluster: Cluster, doors: Doors) -> Iterator[GroupResult[Host]]:
    """Open all nodes that can be opened; closes them."""
    group = doors.connect(cluster)
    try:
        yield group
    finally:
        for host in group.values_by_node.values():
            host.close()


def _read(subject: Subject, group: GroupResult[Host], doors: Doors) -> Bundle:
    nodes = subject.cluster.nodes
    lost = [
        no_connection(node, group.errors_by_node[node.name])
        for node in nodes
        if node.name in group.errors_by_node
    ]
    read = read_cluster(subject, [group[n.name] for n in nodes if n.name in group], doors)
    wish = (*wish_readings(subject), *baseline_readings(subject.cluster))
    return Bundle(readings=(*wish, *lost, *read.readings), unread=read.unread)


def _measured(
    read: Bundle, request: DoctorRequest, group: GroupResult[Host], emitter: Emitter
) -> Bundle:
    """What was read, with measurements between the nodes; none where a check turns them down."""
    asked = Reading(
        text=f"sparkserve doctor --bandwidth --size {request.test_bytes}\n",
        label=_REQUEST,
        what=_REQUEST,
    )
    readings = (*read.readings, asked)
    found = examined(Bundle(readings=readings))
    if any(f.verdict == "REFUSE" and f.code == _TOO_BIG for f in found.result.findings):
        return read.model_copy(update={"readings": readings})
    tests = tests_of(found.scene, request.test_bytes or 0)
    took = format_duration(float(expected_s(tests)))
    emitter.emit("notice", f"{len(tests)} tests between the nodes, about {took}")
    parts = [measure(tests, group.values_by_node)]
    if request.collective:
        emitter.emit("notice", "an all-reduce over all nodes, up to a minute")
        parts.append(measure_all_reduce(found.scene, group.values_by_node))
    return Bundle(
        readings=(*readings, *(reading for part in parts for reading in part.readings)),
        unread=(*read.unread, *(unread for part in parts for unread in part.unread)),
    )


@dataclass
class _Phases:
    """Tells where the command stands."""

    emitter: Emitter
    total: int
    nodes: int
    number: int = 0

    def begin(self, title: str) -> None:
        """Enter the next phase."""
        self.number += 1
        data = {"number": self.number, "of": self.total, "nodes": self.nodes}
        self.emitter.emit("phase", title, data=data)


def _while_serving(findings: Sequence[Finding], checks: Sequence[Check]) -> tuple[Finding, ...]:
    """Findings of nodes that serve, without what only an idle node has.

    That a node serves is what it is for; ports and memory are then in use by right.
    """
    serving = {f.node for f in findings if f.check_id == _IDLE and f.outcome == "fail"}
    before_launch = {check.id for check in checks if set(check.stages) == {"launch"}}
    kept = []
    for finding in findings:
        if finding.node not in serving or finding.check_id not in before_launch:
            kept.append(finding)
        elif finding.check_id == _IDLE:
            kept.append(_turned(finding, "pass", finding.observed))
        elif finding.outcome == "fail":
            told = f"not judged while the node serves: {finding.observed}"
            kept.append(_turned(finding, "skipped", told))
    return tuple(kept)


def _turned(finding: Finding, outcome: Outcome, observed: str) -> Finding:
    told = {"expected": "", "why": "", "fix": "", "evidence": ()}
    verdict = {"outcome": outcome, "verdict": outcome.upper(), "observed": observed}
    return finding.model_copy(update=told | verdict)


def _unread(reading: Reading) -> Unread:
    return Unread(
        label=reading.label or reading.source,
        node=reading.node,
        command=reading.command,
        path=reading.path,
        what=reading.what,
        reason="no reader knows this kind of text",
    )
