"""``sparkserve doctor``: what is wrong, on which node, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkserve.checks.check import Check
from sparkserve.checks.diagnose import CLUSTER, PROFILE, diagnose
from sparkserve.checks.registry import ALL
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster
from sparkserve.model.diagnosis import Bundle, DoctorResult, Unread
from sparkserve.model.event import Observer
from sparkserve.model.finding import Finding, Outcome
from sparkserve.model.profile import Profile
from sparkserve.model.reading import Reading
from sparkserve.ops import bundle as bundles
from sparkserve.ops.doctor_live import Subject, no_connection, read_cluster, wish_readings
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.shard_commands import named
from sparkserve.ops.target import Seen, Target, resolve_to_look

_PHASES = 3
_IDLE = "NODE.IDLE"


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


def run(request: DoctorRequest, doors: Doors, observer: Observer) -> DoctorResult:
    """Read all nodes and judge them; changes nothing.

    Raises:
        ConfigError: profile, cluster or options are wrong, or the folder to save to is taken.
        KeyboardInterrupt: nothing was left behind.
    """
    if request.save is not None:
        bundles.refuse_taken(request.save)
    seen = resolve_to_look(request.target, doors.environment)
    emitter = Emitter([observer], doors.now)
    for reason in seen.reasons:
        emitter.emit("notice", reason)
    subject = _subject(request, seen)
    read = _read(subject, doors, emitter)
    _phase(emitter, 3, "judge", subject)
    if request.save is not None:
        bundles.save(request.save, read, doors.now())
    return judged(read, request.checks, for_launch=request.for_launch, strict=request.strict)


def judged(
    bundle: Bundle, checks: Sequence[Check] = ALL, *, for_launch: bool = False, strict: bool = False
) -> DoctorResult:
    """Judge texts, wherever they come from, without touching any machine.

    Raises:
        ConfigError: the texts' own profile or cluster is of another version.
    """
    try:
        diagnosis = diagnose(bundle.readings, checks)
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"the bundle's profile or cluster cannot be read: {first}") from error
    findings = diagnosis.findings if for_launch else _while_serving(diagnosis.findings, checks)
    told = {reading.what: reading.text for reading in bundle.readings}
    return DoctorResult(
        findings=findings,
        unread=(*bundle.unread, *(_unread(reading) for reading in diagnosis.unread)),
        cluster=Cluster.model_validate_json(told[CLUSTER]) if CLUSTER in told else None,
        profile=Profile.model_validate_json(told[PROFILE]).name if PROFILE in told else None,
        strict=strict,
    )


def _subject(request: DoctorRequest, seen: Seen) -> Subject:
    profile = seen.resolved.profile.profile if seen.resolved else None
    return Subject(
        cluster=seen.cluster,
        profile=profile,
        this_python=request.this_python,
        named=named(request.target, profile.name) if profile else None,
    )


def _read(subject: Subject, doors: Doors, emitter: Emitter) -> Bundle:
    _phase(emitter, 1, "connect", subject)
    group = doors.connect(subject.cluster)
    hosts = [group[node.name] for node in subject.cluster.nodes if node.name in group]
    try:
        lost = [
            no_connection(node, group.errors_by_node[node.name])
            for node in subject.cluster.nodes
            if node.name in group.errors_by_node
        ]
        _phase(emitter, 2, "read", subject)
        read = read_cluster(subject, hosts, doors)
    finally:
        for host in hosts:
            host.close()
    return Bundle(readings=(*wish_readings(subject), *lost, *read.readings), unread=read.unread)


def _phase(emitter: Emitter, number: int, title: str, subject: Subject) -> None:
    nodes = len(subject.cluster.nodes)
    emitter.emit("phase", title, data={"number": number, "of": _PHASES, "nodes": nodes})


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
