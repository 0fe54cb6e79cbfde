"""``doctor --fix``: named, safe changes through a plan, a journal of them, and the way back.

The journal is written before a change is begun, so that whatever interrupts the command, undo
knows of it. Taking back a change that was never made sets the value that is there already.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from sparkserve.checks.scene import Scene
from sparkserve.errors import ConfigError, SparkserveError
from sparkserve.facts import host
from sparkserve.facts.reader import Fact
from sparkserve.files import save_file
from sparkserve.model.cluster import Cluster
from sparkserve.model.event import Event
from sparkserve.model.facts import Unobserved
from sparkserve.model.finding import Finding
from sparkserve.model.mend import Change, FixResult, Journal, JournalEntry
from sparkserve.model.plan import Plan, Step
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.execute import run_stage
from sparkserve.paths import state_dir
from sparkserve.planning.mends import MENDS, fix_plan, mends_for, undo_plan
from sparkserve.transport.host import Host

F = TypeVar("F", bound=Fact)
ALL = "all"
_STEP_S = 20.0


@dataclass(frozen=True)
class _Patient:
    """One node of a scene."""

    scene: Scene
    name: str

    @property
    def is_root(self) -> bool:
        identity = host.IDENTITY.read(self.scene.facts[self.name])
        return not isinstance(identity, Unobserved) and identity.user == "root"

    @property
    def management_address(self) -> str | None:
        identity = host.IDENTITY.read(self.scene.facts[self.name])
        return None if isinstance(identity, Unobserved) else identity.ssh_address

    @property
    def fabric_address(self) -> str | None:
        return next(n.fabric_address for n in self.scene.cluster.nodes if n.name == self.name)

    def fact(self, kind: type[F]) -> F | None:
        return self.scene.of(self.name, kind)


def known_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of mends as the user gave them; ``all`` stands for every one.

    Raises:
        ConfigError: there is no such mend.
    """
    given = [name for text in names for name in text.split(",") if name]
    known = [mend.name for mend in MENDS]
    for name in given or names:
        if name not in (*known, ALL):
            raise ConfigError(
                f"no mend {name!r}; there are: {', '.join([*known, ALL])}",
                hint="sparkserve doctor --fix all --dry-run",
            )
    return tuple(known) if ALL in given else tuple(dict.fromkeys(given))


def wanted_changes(
    scene: Scene, findings: Sequence[Finding], names: Sequence[str]
) -> tuple[Change, ...]:
    """What the named mends would change on the nodes that need it."""
    if scene.fleet is None:
        return ()
    nodes = {node.name for node in scene.fleet.nodes}
    return tuple(
        change
        for mend, node in mends_for(findings, names)
        if node in nodes
        for change in mend.changes(_Patient(scene, node))
    )


@dataclass
class _Noter:
    """An observer that writes the journal as steps begin, and remembers which ended well."""

    cluster: str
    changes: Mapping[str, Change]
    doors: Doors
    undoing: bool
    done: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def event(self, event: Event) -> None:
        """Take one event."""
        change = self.changes.get(str(event.data.get("id")))
        if event.kind != "step" or change is None:
            return
        with self._lock:
            state = event.data["state"]
            if state == "begun" and not self.undoing:
                entries = journal(self.cluster).entries
                # What is there already has the same way back: a node was booted in between.
                if change not in [entry.change for entry in entries]:
                    entry = JournalEntry(change=change, at=self.doors.now())
                    _write(self.cluster, (*entries, entry))
            elif state == "done":
                self.done.append(change.id)
                if self.undoing:
                    entries = journal(self.cluster).entries
                    _write(self.cluster, [e for e in entries if e.change.id != change.id])
            elif state == "failed":
                error = str(event.data["error"])
                # Most errors of a node begin with its name and what it was at.
                told = error.startswith(f"{change.node}: ")
                self.errors.append(error if told else f"{change.node}: {change.title}: {error}")


def apply(
    cluster: str, changes: Sequence[Change], hosts: Mapping[str, Host], emitter: Emitter,
    doors: Doors,
) -> FixResult:  # fmt: skip
    """Make changes; one that fails hides no other.

    Raises:
        ConfigError: the journal cannot be written; then nothing more was begun.
        KeyboardInterrupt: what was begun stands in the journal.
    """
    return _carry_out(fix_plan(changes), cluster, changes, hosts, emitter, doors)


def take_back(cluster: Cluster, doors: Doors, emitter: Emitter) -> FixResult:
    """Take back every change that the journal of a cluster lists, the newest first.

    Raises:
        ConfigError: the journal cannot be read or written.
    """
    changes = tuple(entry.change for entry in journal(cluster.name).entries)
    named = {change.node for change in changes}
    nodes = tuple(node for node in cluster.nodes if node.name in named)
    gone = named - {node.name for node in nodes}
    lost = [
        f"{change.node} is no node of cluster {cluster.name} any more: {change.undo_line}"
        for change in changes
        if change.node in gone
    ]
    if not nodes:
        return FixResult(verb="undo", changes=changes, errors=tuple(lost))
    told = {"of": 2, "nodes": len(nodes)}
    emitter.emit("phase", "connect", data=told | {"number": 1})
    group = doors.connect(cluster.model_copy(update={"nodes": nodes}))
    hosts = group.values_by_node
    lost += [error.message for error in group.errors_by_node.values()]
    try:
        emitter.emit("phase", "take back", data=told | {"number": 2})
        reached = [change for change in changes if change.node in hosts]
        result = _carry_out(undo_plan(reached), cluster.name, reached, hosts, emitter, doors)
    finally:
        for one in hosts.values():
            one.close()
    return result.model_copy(update={"changes": changes, "errors": (*result.errors, *lost)})


def journal(cluster: str) -> Journal:
    """What was changed on a cluster and not taken back.

    Raises:
        ConfigError: the journal is damaged; names the file.
    """
    path = _path(cluster)
    if not path.is_file():
        return Journal()
    try:
        return Journal.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"cannot read {path}: {str(error).splitlines()[0]}", hint=f"cat {path}"
        ) from error


def _carry_out(
    plan: Plan, cluster: str, changes: Sequence[Change], hosts: Mapping[str, Host],
    emitter: Emitter, doors: Doors,
) -> FixResult:  # fmt: skip
    noter = _Noter(cluster, {c.id: c for c in changes}, doors, undoing=plan.verb == "undo")
    emitter.observers.append(noter)
    try:
        for stage in plan.stages:
            run_stage(stage, hosts, emitter, _no_waiter, command_s=_STEP_S)
    except ConfigError:
        raise
    except SparkserveError as error:
        # Every failed step has told the noter; anything else is told here.
        if not noter.errors:
            noter.errors.append(error.message)
    finally:
        emitter.observers.remove(noter)
    return FixResult(
        verb=plan.verb,
        changes=tuple(changes),
        done=tuple(noter.done),
        errors=tuple(noter.errors),
    )


def _no_waiter(step: Step) -> None:
    raise AssertionError(f"no mend waits: {step.id}")


def _write(cluster: str, entries: Sequence[JournalEntry]) -> None:
    path = _path(cluster)
    text = Journal(entries=tuple(entries)).model_dump_json(indent=2) + "\n"
    save_file(path, text.encode(), mode=0o600)


def _path(cluster: str) -> Path:
    return state_dir() / "mends" / f"{cluster}.json"
