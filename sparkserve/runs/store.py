"""The run folder: record, plan, facts, findings, events and what came from each node."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from sparkserve.errors import BusyError, ConfigError
from sparkserve.files import save_file
from sparkserve.model.finding import Finding
from sparkserve.model.plan import Plan, PutFile, Stage
from sparkserve.model.record import RunOutcome, RunRecord
from sparkserve.paths import state_dir
from sparkserve.runs.events import EventHistory, EventWriter, read_events

T = TypeVar("T")
HIDDEN = "***"
"""What a recorded plan holds in place of a secret."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SLUG_CHARS = 24
_FINDINGS = TypeAdapter(tuple[Finding, ...])
# The folder may hold prompts and answers: it is its owner's alone.
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


@dataclass(frozen=True)
class RunDirectory:
    """One run's folder; every file in it is replaced as a whole or appended to by lines."""

    run_id: str
    path: Path

    def write_record(self, record: RunRecord) -> None:
        """Replace ``record.json``."""
        self._write("record.json", record.model_dump(mode="json"))

    def record(self) -> RunRecord:
        """Read ``record.json``.

        Raises:
            ConfigError: it is missing or cannot be read as a record; names the file.
        """
        return self._read("record.json", RunRecord.model_validate_json)

    def write_plan(self, plan: Plan) -> None:
        """Replace ``plan.json``; the content of secret files is left out."""
        self._write("plan.json", without_secrets(plan).model_dump(mode="json"))

    def plan(self) -> Plan:
        """Read ``plan.json``; raises ConfigError as ``record`` does."""
        return self._read("plan.json", Plan.model_validate_json)

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Replace ``facts.json``: node name -> plain JSON data or models."""
        self._write("facts.json", {node: _plain(value) for node, value in facts.items()})

    def facts(self) -> dict[str, Any]:
        """Read ``facts.json``; raises ConfigError as ``record`` does."""
        return self._read("facts.json", _object_of)

    def write_findings(self, findings: Sequence[Finding]) -> None:
        """Replace ``findings.json``."""
        self._write("findings.json", [finding.model_dump(mode="json") for finding in findings])

    def findings(self) -> tuple[Finding, ...]:
        """Read ``findings.json``; raises ConfigError as ``record`` does."""
        return self._read("findings.json", _FINDINGS.validate_json)

    @property
    def events_path(self) -> Path:
        """The event file."""
        return self.path / "events.ndjson"

    def event_writer(self) -> EventWriter:
        """Open the event file for appending; close it after use."""
        return EventWriter(self.events_path)

    def events(self) -> EventHistory:
        """Read the event file; what cannot be read is reported in it."""
        return read_events(self.events_path)

    def node_dir(self, node: str) -> Path:
        """Folder for what came from one node (logs, reports); it is created."""
        if not _RUN_ID.fullmatch(node):
            raise ConfigError(f"node name {node!r} cannot be a folder's name")
        folder = self.path / "node" / node
        folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        return folder

    def _write(self, name: str, data: Any) -> None:
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        save_file(self.path / name, text.encode(), mode=_FILE_MODE)

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T:
        path = self.path / name
        try:
            return parse(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"run {self.run_id}: cannot read {path}: {error.strerror or error}",
                hint="sparkserve status",
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"run {self.run_id}: {path} is damaged: {key + ': ' if key else ''}{first['msg']}",
                hint=f"move {self.path} away to forget the run",
            ) from error


@dataclass(frozen=True)
class RunEntry:
    """One line of the list of runs."""

    run_id: str
    directory: RunDirectory
    record: RunRecord | None
    """None where it cannot be read."""
    problem: str | None = None
    """Why it cannot be read."""


def runs_dir() -> Path:
    """Where run folders lie."""
    return state_dir() / "runs"


def new_run_id(now: datetime, profile: str) -> str:
    """A readable id that sorts by time: ``20261130-173512-local-demo-4f2a``.

    now: aware; the id holds UTC.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", profile.lower()).strip("-")[:_SLUG_CHARS].strip("-")
    stamp = now.astimezone(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{slug or 'run'}-{secrets.token_hex(2)}"


def create(run_id: str) -> RunDirectory:
    """Make the folder of a new run.

    Raises:
        BusyError: there is one of this id already.
        ConfigError: the id cannot be a folder's name, or the folder cannot be made.
    """
    path = _path_of(run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        path.mkdir(mode=_FOLDER_MODE)
    except FileExistsError as error:
        raise BusyError(f"run {run_id} exists already: {path}") from error
    except OSError as error:
        raise ConfigError(f"cannot make {path}: {error.strerror or error}") from error
    return RunDirectory(run_id, path)


def create_new(now: datetime, profile: str) -> RunDirectory:
    """Make a new run folder under a fresh id, however many start in the same second."""
    while True:
        try:
            return create(new_run_id(now, profile))
        except BusyError:
            continue


def open_run(run_id: str) -> RunDirectory:
    """Find a run by its id or by the beginning of it.

    Raises:
        ConfigError: no such run, or several (they are listed).
    """
    path = _path_of(run_id)
    if path.is_dir():
        return RunDirectory(run_id, path)
    known = _ids()
    candidates = [known_id for known_id in known if known_id.startswith(run_id)]
    if len(candidates) == 1:
        return RunDirectory(candidates[0], runs_dir() / candidates[0])
    if candidates:
        raise ConfigError(f"run {run_id!r} is not unique: {', '.join(candidates)}")
    newest = f"; the newest are: {', '.join(known[:5])}" if known else "; there are none"
    raise ConfigError(f"no run {run_id!r}{newest}", hint="sparkserve status")


def load(run_id: str) -> RunRecord:
    """Read the record of a run, named by its id or by the beginning of it.

    Raises:
        ConfigError: no such run, several, or a record that cannot be read.
    """
    return open_run(run_id).record()


def list_runs() -> list[RunEntry]:
    """All runs, newest first; one that cannot be read does not hide the others."""
    entries = []
    for run_id in _ids():
        directory = RunDirectory(run_id, runs_dir() / run_id)
        try:
            entries.append(RunEntry(run_id, directory, directory.record()))
        except ConfigError as error:
            entries.append(RunEntry(run_id, directory, None, error.message))
    return entries


def latest(cluster: str | None = None, outcome: RunOutcome | None = None) -> RunDirectory | None:
    """The newest readable run of a cluster and outcome; None if there is none."""
    for run_id in _ids():
        directory = RunDirectory(run_id, runs_dir() / run_id)
        try:
            record = directory.record()
        except ConfigError:
            # list_runs reports it; here an older good run is the better answer.
            continue
        if cluster in (None, record.cluster.name) and outcome in (None, record.outcome):
            return directory
    return None


def without_secrets(plan: Plan) -> Plan:
    """The same plan with ``***`` for the content of every secret file."""
    stages = []
    for stage in plan.stages:
        steps = tuple(
            step.model_copy(update={"action": step.action.model_copy(update={"content": HIDDEN})})
            if isinstance(step.action, PutFile) and step.action.secret
            else step
            for step in stage.steps
        )
        stages.append(Stage(title=stage.title, steps=steps))
    return plan.model_copy(update={"stages": tuple(stages)})


def _ids() -> list[str]:
    """Ids of all run folders, newest first: the id begins with the time."""
    if not runs_dir().is_dir():
        return []
    found = (path.name for path in runs_dir().iterdir() if path.is_dir())
    return sorted((name for name in found if _RUN_ID.fullmatch(name)), reverse=True)


def _path_of(run_id: str) -> Path:
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(f"run id {run_id!r}, expected something like 20261130-173512-demo-4f2a")
    return runs_dir() / run_id


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _object_of(raw: bytes) -> dict[str, Any]:
    return TypeAdapter(dict[str, Any]).validate_json(raw)
