"""``sparkserve launch``: from profile and cluster to an endpoint that has answered a question."""

from __future__ import annotations

import contextlib
import secrets as random_secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparkserve import __version__, runs
from sparkserve.adapters import registry as adapter_registry
from sparkserve.checks.gids import planned
from sparkserve.engine import spec as engine_spec
from sparkserve.errors import BusyError, ConfigError, SparkserveError
from sparkserve.facts import checkpoint, host, runtime
from sparkserve.model.cluster import Cluster
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.event import Observer
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.finding import Finding
from sparkserve.model.plan import Plan
from sparkserve.model.profile import THIS_PYTHON, Profile
from sparkserve.model.record import Endpoint, RunRecord
from sparkserve.ops.baselines import remember
from sparkserve.ops.bring_up import PHASES_BEFORE, BringUp, since
from sparkserve.ops.doctor_live import Subject
from sparkserve.ops.doors import Doors, Emitter, connect_all
from sparkserve.ops.keyfile import read_api_key
from sparkserve.ops.launch_gids import refuse_unplanned, with_index
from sparkserve.ops.launch_gids import tell as tell_gids
from sparkserve.ops.launch_look import Look, look, refuse_failures, tell
from sparkserve.ops.shard_commands import named
from sparkserve.ops.target import Resolved, Target, resolve
from sparkserve.planning import launch as planning
from sparkserve.planning.gids import GidPlan
from sparkserve.planning.places import locate
from sparkserve.runs import RunDirectory

_LOCK_POLL_S = 0.5


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked for."""

    target: Target
    this_python: str
    """Interpreter that stands for ``engine.python = "this"``."""
    dry_run: bool = False
    ensure: bool = False
    """An equal run that serves already is success; one that still starts is waited for."""


@dataclass(frozen=True)
class LaunchResult:
    """What came of it; after a dry run there is no record."""

    resolved: Resolved
    findings: tuple[Finding, ...]
    plan: Plan
    specs: tuple[EngineSpec, ...]
    record: RunRecord | None
    gids: tuple[GidPlan, ...] = ()
    """Which GID index every rank is told, and why; empty = none is wanted."""


@dataclass
class _Launch:
    """One launch under way."""

    request: LaunchRequest
    resolved: Resolved
    bring_up: BringUp
    seen: Look | None = None
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    gids: tuple[GidPlan, ...] = ()

    @property
    def emitter(self) -> Emitter:
        return self.bring_up.emitter

    @property
    def profile(self) -> Profile:
        return self.resolved.profile.profile

    @property
    def cluster(self) -> Cluster:
        return self.resolved.cluster


def run(request: LaunchRequest, doors: Doors, observer: Observer) -> LaunchResult:
    """Launch a profile on a cluster; returns when the endpoint has answered, or after a dry run.

    Raises:
        ConfigError: profile, cluster or options are wrong; nothing was touched.
        NodeError: a node cannot be used.
        CheckFailed: a check failed; nothing was changed.
        BusyError: the nodes serve another run, or another launch is under way.
        NotReadyError: the engine did not become ready; every rank was stopped again.
        KeyboardInterrupt: after what this launch started was stopped; a run that served before
            it began goes on.
    """
    resolved = resolve(request.target, doors.environment)
    _refuse_contradictions(request, resolved)
    api_key = read_api_key(resolved.profile.profile.serving.api_key_file)
    emitter = Emitter([observer], doors.now, secrets=(api_key,) if api_key else ())
    for reason in resolved.reasons:
        emitter.emit("notice", reason)
    started = time.monotonic()
    emitter.emit("phase", "connect", data=_place(1, resolved))
    connected = connect_all(doors, resolved.cluster)
    try:
        bring_up = BringUp({node.name: node for node in connected}, emitter, api_key)
        launch = _Launch(request, resolved, bring_up)
        bring_up.timings_s["connect"] = since(started)
        _look(launch, doors)
        existing = _existing(launch) if request.ensure else None
        if existing is not None:
            # That the nodes serve is then what was asked for, not a fault.
            launch.findings = tuple(f for f in launch.findings if f.check_id != "NODE.IDLE")
        tell(launch.findings, emitter)
        if existing is not None and not request.dry_run:
            return _take_up(launch, existing.run_id)
        if launch.seen is not None:
            refuse_failures(launch.seen, launch.findings, emitter)
        refuse_unplanned(launch.gids, launch.findings)
        return _dry(launch) if request.dry_run else _start(launch, doors)
    finally:
        for node in connected:
            node.close()


def _place(number: int, resolved: Resolved) -> dict[str, int]:
    """Where a phase before the plan's stages stands among all phases."""
    nodes = len(resolved.cluster.nodes)
    return {"number": number, "of": PHASES_BEFORE + planning.stage_count(nodes), "nodes": nodes}


def _refuse_contradictions(request: LaunchRequest, resolved: Resolved) -> None:
    profile = resolved.profile.profile
    adapter_registry.validate(profile.adapters)
    if profile.engine.kind == "vllm":
        raise ConfigError(f"profile {profile.name}: engine.kind vllm cannot be launched yet")
    if profile.engine.runtime == "container" and not request.dry_run:
        raise ConfigError(
            f"profile {profile.name}: this version renders containers but does not start them, "
            "expected engine.runtime = venv",
            hint="sparkserve launch --dry-run",
        )
    if profile.engine.python == THIS_PYTHON:
        for node in resolved.cluster.nodes:
            if not node.is_local:
                raise ConfigError(
                    f"{node.name}: engine.python = this means this machine, "
                    "expected a path on the node",
                    hint="sparkserve launch --set engine.python=/path/to/python",
                )
    nodes = resolved.cluster.nodes
    for node in nodes:
        if len(nodes) > 1 and node.is_local and node.fabric_address is None:
            raise ConfigError(
                f"{node.name} is this machine, which the other nodes cannot reach at 127.0.0.1, "
                "expected its fabric_address in the cluster file",
                hint=f"sparkserve cluster show {resolved.cluster.name}",
            )


def _look(launch: _Launch, doors: Doors) -> None:
    """Read the facts of all nodes and judge them."""
    request, profile = launch.request, launch.profile
    launch.emitter.emit("phase", "facts", data=_place(2, launch.resolved))
    subject = Subject(
        cluster=launch.cluster,
        profile=profile,
        this_python=request.this_python,
        named=named(request.target, profile.name),
    )
    started = time.monotonic()
    launch.seen = look(subject, list(launch.bring_up.hosts.values()), doors)
    launch.facts, launch.findings = launch.seen.facts, launch.seen.findings
    launch.gids = planned(launch.seen.scene)
    launch.bring_up.timings_s["facts"] = since(started)


def _specs(launch: _Launch, run_id: str) -> tuple[EngineSpec, ...]:
    places = tuple(
        with_index(locate(node, launch.facts[node.name], launch.profile), launch.gids)
        for node in launch.cluster.nodes
    )
    sizes_bytes: dict[str, dict[str, int]] = {}
    for place in places:
        files = checkpoint.FILES.read(launch.facts[place.name])
        if launch.profile.engine.kind != "light" and not isinstance(files, Unobserved):
            sizes_bytes[place.name] = {
                file.name: file.size_bytes
                for file in files.files or ()
                if file.name.endswith(".safetensors")
            }
    return engine_spec.build(
        engine_spec.Wanted(
            profile=launch.profile,
            places=places,
            adapters=adapter_registry.validate(launch.profile.adapters),
            run_id=run_id,
            checkpoint_files=sizes_bytes,
        )
    )


def _plan(launch: _Launch, specs: Sequence[EngineSpec]) -> Plan:
    key = launch.bring_up.api_key
    secrets = planning.Secrets(guard_key=random_secrets.token_hex(32), api_key=key)
    return planning.build(launch.profile, specs, _pythons(launch), secrets)


def _pythons(launch: _Launch) -> list[str]:
    found = []
    for node in launch.cluster.nodes:
        python = runtime.PYTHON.read(launch.facts[node.name])
        if isinstance(python, Unobserved):
            raise ConfigError(f"{node.name}: no Python runtime: {python.reason}")
        found.append(python.python)
    return found


def _dry(launch: _Launch) -> LaunchResult:
    specs = _specs(launch, "dry-run")
    plan = runs.without_secrets(_plan(launch, specs))
    return LaunchResult(launch.resolved, launch.findings, plan, specs, None, launch.gids)


def _start(launch: _Launch, doors: Doors) -> LaunchResult:
    directory = runs.create_new(doors.now(), launch.profile.name)
    with _locked(launch, directory), directory.event_writer() as log:
        launch.emitter.observers.append(log)
        launch.emitter.run_id = directory.run_id
        tell_gids(launch.gids, launch.emitter)
        specs = _specs(launch, directory.run_id)
        plan = _plan(launch, specs)
        record = _new_record(launch, specs, directory.run_id)
        directory.write_record(record)
        directory.write_plan(plan)
        directory.write_facts(launch.facts)
        directory.write_findings(launch.findings)
        record = launch.bring_up.carry_out(directory, plan, record)
        if launch.seen is not None:
            names = [node.name for node in launch.cluster.nodes]
            remember(launch.cluster, launch.seen.scene, names, became_ready=True)
        return LaunchResult(launch.resolved, launch.findings, plan, specs, record, launch.gids)


@contextlib.contextmanager
def _locked(launch: _Launch, directory: RunDirectory) -> Iterator[None]:
    """Hold the cluster's lock; a launch that does not get it leaves no empty folder behind."""
    lock = runs.ClusterLock(launch.cluster.name, directory.run_id)
    try:
        lock.acquire()
    except SparkserveError:
        directory.path.rmdir()
        raise
    try:
        yield
    finally:
        lock.release()


def _new_record(launch: _Launch, specs: Sequence[EngineSpec], run_id: str) -> RunRecord:
    now = launch.emitter.now()
    pythons = _pythons(launch)
    profile = launch.profile
    return RunRecord(
        run_id=run_id,
        tool_version=__version__,
        created_at=now,
        updated_at=now,
        outcome="launching",
        profile=profile,
        origins=dict(launch.resolved.profile.origins),
        profile_digest=profile.digest,
        cluster=launch.cluster,
        run_dirs={spec.node: spec.run_dir for spec in specs},
        pythons={spec.node: python for spec, python in zip(specs, pythons, strict=True)},
        endpoint=Endpoint(
            url=f"http://{_public_host(launch, specs[0])}:{profile.serving.port}/v1",
            reachable_from="head" if profile.serving.is_loopback else "network",
            model=profile.model.served_name,
        ),
        agreement=specs[0].agreement,
    )


def _public_host(launch: _Launch, head: EngineSpec) -> str:
    """The address at which users reach rank 0: as we did, not the one on the ranks' own network."""
    if launch.profile.serving.is_loopback:
        return launch.profile.serving.host
    identity = host.IDENTITY.read(launch.facts[head.node])
    reached = None if isinstance(identity, Unobserved) else identity.ssh_address
    address = reached or head.guard.head_address
    return f"[{address}]" if ":" in address else address


def _existing(launch: _Launch) -> RunRecord | None:
    """The run that holds all nodes, when it is this launch's equal; None where nobody does.

    Raises:
        BusyError: the nodes serve something else, or only some of them serve.
    """
    held = {}
    for name, facts in launch.facts.items():
        holder = runtime.HOLDER.read(facts)
        if not isinstance(holder, Unobserved) and holder.run_id is not None:
            held[name] = holder.run_id
    if not held:
        return None
    run_id = next(iter(held.values()))
    record = None
    if list(held.values()) == [run_id] * len(launch.facts):
        with contextlib.suppress(ConfigError):
            record = runs.load(run_id)
    if (
        record is None
        or record.profile_digest != launch.profile.digest
        or record.cluster.nodes != launch.cluster.nodes
    ):
        serves = ", ".join(f"{name} serves run {run}" for name, run in held.items())
        raise BusyError(
            f"{serves}; that is no run of {launch.profile.name} on exactly these nodes",
            hint=f"sparkserve stop {run_id}",
        )
    return record


def _take_up(launch: _Launch, run_id: str) -> LaunchResult:
    """Find a run serving, or wait for the launch that another one began.

    Raises:
        BusyError: the run has ended, and still holds the nodes.
    """
    directory = runs.open_run(run_id)
    specs = _specs(launch, run_id)
    launch.emitter.run_id = run_id
    launch.emitter.emit("notice", f"run {run_id} is already there: taking it up")
    with _locked_when_free(launch, run_id), directory.event_writer() as log:
        launch.emitter.observers.append(log)
        record, plan = directory.record(), directory.plan()
        if record.outcome not in ("launching", "serving"):
            raise BusyError(
                f"run {run_id} ended as {record.outcome}, expected one that starts or serves",
                hint=f"sparkserve stop {run_id}",
            )
        reading = _only_reading(plan)
        launch.bring_up.skipped = len(plan.stages) - len(reading.stages)
        record = launch.bring_up.carry_out(directory, reading, record)
    return LaunchResult(launch.resolved, launch.findings, plan, specs, record)


@contextlib.contextmanager
def _locked_when_free(launch: _Launch, run_id: str) -> Iterator[None]:
    """Hold the cluster's lock, once the launch that holds it now has come to its end."""
    lock = runs.ClusterLock(launch.cluster.name, run_id)
    told = False
    while True:
        try:
            lock.acquire()
            break
        except BusyError as error:
            if not told:
                launch.emitter.emit("notice", f"{error.message}: waiting for it")
            told = True
            time.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        lock.release()


def _only_reading(plan: Plan) -> Plan:
    stages = (s for s in plan.stages if all(step.effect == "reads" for step in s.steps))
    return plan.model_copy(update={"stages": tuple(stages)})
