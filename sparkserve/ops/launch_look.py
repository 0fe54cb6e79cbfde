"""What a launch looks at before it touches a node: the doctor's reading, judged strictly."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkserve.checks.diagnose import Diagnosis, diagnose, node_facts
from sparkserve.checks.registry import of_stage
from sparkserve.checks.scene import Scene
from sparkserve.errors import BusyError, CheckFailed, ConfigError
from sparkserve.model.diagnosis import Bundle
from sparkserve.model.facts import NodeFacts
from sparkserve.model.finding import Finding
from sparkserve.ops import bundle as bundles
from sparkserve.ops.baselines import baseline_readings
from sparkserve.ops.doctor_live import Subject, read_nodes, wish_readings
from sparkserve.ops.doors import Doors, Emitter, worst
from sparkserve.paths import state_dir
from sparkserve.transport.host import Host

_IDLE = "NODE.IDLE"


@dataclass(frozen=True)
class Look:
    """What was seen and what it means."""

    read: Bundle
    facts: dict[str, NodeFacts]
    """Answers of the launch's own probes by node."""
    findings: tuple[Finding, ...]
    scene: Scene


def look(subject: Subject, hosts: Sequence[Host], doors: Doors) -> Look:
    """Read all nodes at once and judge what a launch must know.

    Raises:
        NodeError: a node could not be read.
    """
    group = read_nodes(subject, hosts, doors)
    if group.errors_by_node:
        raise worst(list(group.errors_by_node.values()))
    nodes = [group[node.name] for node in subject.cluster.nodes]
    wish = (*wish_readings(subject), *baseline_readings(subject.cluster))
    readings = (*wish, *(reading for node in nodes for reading in node.readings))
    found: Diagnosis = diagnose(readings, of_stage("launch"))
    facts = {node.name: node_facts(node.name, readings) for node in subject.cluster.nodes}
    return Look(Bundle(readings=readings), facts, found.findings, found.scene)


def tell(findings: Sequence[Finding], emitter: Emitter) -> None:
    """Every finding as an event."""
    for finding in findings:
        emitter.emit(
            "finding", finding.title, node=finding.node, data=finding.model_dump(mode="json")
        )


def refuse_failures(seen: Look, findings: Sequence[Finding], emitter: Emitter) -> None:
    """End the launch where a check failed, and keep what was read for who wants to look closer.

    Raises:
        BusyError: the nodes serve; whatever else is wrong there may come from that.
        CheckFailed: a check failed.
    """
    blocking = [finding for finding in findings if finding.blocks]
    if not blocking:
        return
    serving = {finding.node for finding in blocking if finding.check_id == _IDLE}
    if all(finding.node in serving for finding in blocking):
        blocking = [finding for finding in blocking if finding.check_id == _IDLE]
        fix = next((finding.fix for finding in blocking if finding.fix), None)
        raise BusyError(_told(blocking), hint=f"{fix}\nor take it up: sparkserve launch --ensure")
    _keep(seen, emitter)
    fix = next((finding.fix for finding in blocking if finding.fix), None)
    raise CheckFailed(_told(blocking), findings=blocking, exit_code=blocking[0].exit_code, hint=fix)


def _told(blocking: Sequence[Finding]) -> str:
    return "\n".join(
        f"{finding.node or 'cluster'}: {finding.observed}"
        + (f", expected {finding.expected}" if finding.expected else "")
        for finding in blocking
    )


def _keep(seen: Look, emitter: Emitter) -> None:
    """Write what was read to the state folder, in place of what an earlier refusal left."""
    folder = refused_folder()
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        bundles.save(folder, seen.read, emitter.now())
    except (ConfigError, OSError) as error:
        emitter.emit("notice", f"what was read could not be kept: {error}")
        return
    emitter.emit("notice", f"what was read: sparkserve doctor --replay {folder}")


def refused_folder() -> Path:
    """Where the readings of the last refused launch lie."""
    return state_dir() / "refused" / "latest"
