"""``sparkserve plan``: will it fit, before anything is started.

Touches no machine unless asked to: without ``live`` the memory of a Spark is assumed, and that is
said. What earlier runs on these nodes told about memory corrects the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkserve import clusters, runs
from sparkserve.checks import registry
from sparkserve.checks.check import judge
from sparkserve.checks.memory_plan import PLAN
from sparkserve.checks.scene import Scene
from sparkserve.errors import ConfigError, ExitCode
from sparkserve.facts import memory
from sparkserve.facts.model_config import ModelConfig, parse_config
from sparkserve.facts.probe import Context, UnusableOutput, collect
from sparkserve.facts.reader import Observation
from sparkserve.facts.wanted import Wanted, wanted_of, wanted_text
from sparkserve.model.cluster import Cluster
from sparkserve.model.facts import Unobserved
from sparkserve.model.finding import Finding
from sparkserve.model.profile import Profile
from sparkserve.model.reading import Reading
from sparkserve.model.record import RunRecord
from sparkserve.ops.doors import Doors, connect_all
from sparkserve.ops.target import Resolved, Target, resolve, resolve_cluster
from sparkserve.planning.memory import build
from sparkserve.planning.memory_formulas import SPARK_AVAILABLE_GIB, SPARK_TOTAL_GIB
from sparkserve.planning.memory_learn import Difference, Learned, differences, learn
from sparkserve.planning.memory_types import MemoryPlan, NodeMemory
from sparkserve.planning.memory_wish import figures_of, unknown_figures, wish_of
from sparkserve.units import GIB

_LOG_LIMIT_BYTES = 32 << 20
_RUNS_LOOKED_AT = 50
_MOST_NODES = 8
_HEADER_LIMIT_BYTES = 512 << 20


@dataclass(frozen=True)
class PlanRequest:
    """What to plan, and by which memory."""

    target: Target
    available_gib: float | None = None
    """MemAvailable of every node, in place of the assumption."""
    live: bool = False
    """Read the memory of every node over SSH."""
    checkpoint: Path | None = None
    """Directory on this machine with config.json and weights."""
    learn: bool = True
    """Whether earlier runs of this model on as many ranks correct the plan."""
    log: Path | None = None
    """An engine log to learn from, in place of earlier runs."""
    meminfo: Path | None = Path("/proc/meminfo")
    """Memory of this machine, where it is a node; None = do not look."""


@dataclass(frozen=True)
class PlanResult:
    """The plan and what its profile's rules say."""

    resolved: Resolved
    plan: MemoryPlan
    findings: tuple[Finding, ...]
    """Rules of the profile that were judged, passes among them."""
    learned: Learned | None
    differences: tuple[Difference, ...]

    @property
    def exit_code(self) -> ExitCode:
        """2 where a setting cannot work, 5 where memory does not fit, else 0."""
        if any(finding.blocks and finding.fault_class == "config" for finding in self.findings):
            return ExitCode.CONFIG
        return ExitCode.MEMORY if self.plan.fits is False else ExitCode.OK


def run(request: PlanRequest, doors: Doors) -> PlanResult:
    """Plan the memory of a launch and judge its profile.

    Raises:
        ConfigError: profile, cluster, options or the named checkpoint are wrong.
        NodeError: with ``live``, a node cannot be used.
    """
    resolved = _resolve(request.target, doors)
    profile, cluster = resolved.profile.profile, resolved.cluster
    config, weights_bytes = _checkpoint(request, profile, cluster)
    figures = figures_of(profile, config, weights_bytes) or unknown_figures(profile)
    wish = wish_of(profile, _memory(request, resolved, doors), figures)
    plan = build(wish)
    learned = _learned(request, profile)
    told = differences(plan, learned) if learned is not None else ()
    if learned is not None:
        plan = build(learned.apply(wish))
    return PlanResult(resolved, plan, _findings(profile, cluster, config), learned, told)


def _resolve(target: Target, doors: Doors) -> Resolved:
    """Profile and nodes as a launch takes them; without a cluster, nodes are made up.

    A plan needs no machine, so one that is meant for several Sparks can be made anywhere.
    """
    file, _ = resolve_cluster(target)
    if file.cluster.name != clusters.LOCAL_NAME or target.profile is None:
        return resolve(target, doors.environment)
    names = tuple(f"spark{number}" for number in range(1, _MOST_NODES + 1))
    made_up = resolve(replace(target, hosts=names), doors.environment)
    if len(made_up.cluster.nodes) == 1:
        return resolve(target, doors.environment)
    count = len(made_up.cluster.nodes)
    return Resolved(made_up.profile, made_up.cluster, (f"{count} Sparks: no cluster is named",))


def _memory(request: PlanRequest, resolved: Resolved, doors: Doors) -> tuple[NodeMemory, ...]:
    nodes = resolved.cluster.nodes
    if request.live and request.available_gib is not None:
        raise ConfigError("--live and --available contradict each other: name one of them")
    if request.live:
        return _live_memory(resolved, doors)
    if request.available_gib is not None:
        given = request.available_gib
        return tuple(
            NodeMemory(node=node.name, available_gib=given, source="given by --available",
                       total_gib=max(given, SPARK_TOTAL_GIB))
            for node in nodes
        )  # fmt: skip
    here = _this_machine(request.meminfo)
    return tuple(
        here.model_copy(update={"node": node.name})
        if here is not None and node.is_local
        else NodeMemory(node=node.name, available_gib=SPARK_AVAILABLE_GIB)
        for node in nodes
    )


def _this_machine(meminfo: Path | None) -> NodeMemory | None:
    """Memory of the machine that sparkserve runs on; None where it is no Linux."""
    try:
        read = memory.MEMINFO.parse(meminfo.read_text(encoding="utf-8")) if meminfo else None
    except (OSError, UnusableOutput):
        return None
    return None if read is None else _of(read, "local", "read from this machine")


def _of(read: memory.MemoryFacts, node: str, source: str) -> NodeMemory:
    return NodeMemory(
        node=node,
        available_gib=read.available_bytes / GIB,
        total_gib=read.total_bytes / GIB,
        source=source,
    )


def _live_memory(resolved: Resolved, doors: Doors) -> tuple[NodeMemory, ...]:
    hosts = connect_all(doors, resolved.cluster)
    try:
        timeout_s = resolved.profile.profile.limits.command_s
        group = collect(
            hosts, (memory.MEMINFO,), Context(root=resolved.cluster.root), timeout_s=timeout_s
        )
    finally:
        for host in hosts:
            host.close()
    found = []
    for node in resolved.cluster.nodes:
        if node.name in group.errors_by_node:
            raise group.errors_by_node[node.name]
        read = memory.MEMINFO.read(group[node.name])
        if isinstance(read, Unobserved):
            raise ConfigError(
                f"{node.name}: memory was not observed: {read.reason}",
                hint="sparkserve plan --available GIB",
            )
        found.append(_of(read, node.name, "read from the node"))
    return tuple(found)


def _checkpoint(
    request: PlanRequest, profile: Profile, cluster: Cluster
) -> tuple[ModelConfig | None, int | None]:
    """config.json and the size of the weights, where a checkpoint lies on this machine."""
    folder = request.checkpoint
    if folder is None:
        path = Path(profile.model.path).expanduser()
        if any(node.is_local for node in cluster.nodes) and not path.is_absolute():
            path = Path(cluster.root).expanduser() / "checkpoints" / path
        folder = path if path.is_absolute() else None
    if folder is None or not (folder / "config.json").is_file():
        if request.checkpoint is not None:
            raise ConfigError(f"no config.json in {request.checkpoint}")
        return None, None
    try:
        config = parse_config((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnusableOutput) as error:
        raise ConfigError(f"cannot read {folder / 'config.json'}: {error}") from error
    sizes = [_weights_bytes(file) for file in sorted(folder.glob("*.safetensors"))]
    return config, sum(sizes) if sizes else None


def _weights_bytes(file: Path) -> int:
    """Bytes of a file's tensors without Engram tables, by its header; else the file's size."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _HEADER_LIMIT_BYTES:
                return file.stat().st_size
            header = json.loads(stream.read(length))
        ends = [
            entry["data_offsets"] for name, entry in header.items()
            if name != "__metadata__" and ".engram.embed" not in name
        ]  # fmt: skip
        return sum(end - begin for begin, end in ends)
    except (OSError, ValueError, TypeError, KeyError):
        return file.stat().st_size


def _learned(request: PlanRequest, profile: Profile) -> Learned | None:
    """The newest run of this model on as many ranks whose logs say something about memory."""
    if request.log is not None:
        try:
            text = request.log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"cannot read {request.log}: {error.strerror}") from error
        found = learn(request.log.name, {"log": text})
        if found is None:
            raise ConfigError(
                f"{request.log} says nothing about memory, expected lines with avail mem= or "
                "full_token="
            )
        return found
    if not request.learn:
        return None
    for entry in runs.list_runs()[:_RUNS_LOOKED_AT]:
        if entry.record is not None and _alike(entry.record, profile):
            found = learn(entry.run_id, _logs(entry.directory.path))
            if found is not None:
                return found
    return None


def _alike(record: RunRecord, profile: Profile) -> bool:
    """Whether a run loaded the same: model, ranks, speculation and NCCL's buffers."""
    other = record.profile
    return (
        other.model.path == profile.model.path
        and other.parallel == profile.parallel
        and other.engine.kind == profile.engine.kind
        and other.engine.device == profile.engine.device
        and other.speculation.algorithm == profile.speculation.algorithm
        and other.fabric.nccl.get("NCCL_BUFFSIZE") == profile.fabric.nccl.get("NCCL_BUFFSIZE")
    )


def _logs(folder: Path) -> Mapping[str, str]:
    """Texts of a run's folder by node: its events, and what was brought from the nodes."""
    texts: dict[str, str] = {}
    for place, line in _event_lines(folder / "events.ndjson"):
        texts[place] = f"{texts.get(place, '')}{line}\n"
    for file in sorted(folder.glob("node/*/*.log*")):
        text = _text(file)
        texts[file.parent.name] = f"{texts.get(file.parent.name, '')}{text}\n"
    return texts


def _event_lines(path: Path) -> Iterator[tuple[str, str]]:
    for line in _text(path).splitlines():
        if "full_token=" not in line and "avail mem=" not in line and "_num_tokens=" not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        place = event.get("node") if isinstance(event, dict) else None
        yield str(place or "head"), line.replace("\\n", "\n")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_LOG_LIMIT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def rules_broken(profile: Profile) -> tuple[Finding, ...]:
    """Rules that a profile breaks whatever its nodes: those that would stop a launch."""
    names = [f"spark{number}" for number in range(1, profile.parallel.tp + 1)]
    found = _findings(profile, clusters.from_hosts(names), None)
    return tuple(finding for finding in found if finding.blocks)


def _findings(
    profile: Profile, cluster: Cluster, config: ModelConfig | None
) -> tuple[Finding, ...]:
    """The rules of the profile; its memory is the plan's own part."""
    wanted = wanted_of(profile, cluster)
    reading = Reading(text=wanted_text(wanted), what="profile", format="yaml")
    seen: list[Observation] = [Observation(None, wanted, Wanted, reading)]
    if config is not None:
        seen.append(Observation(None, config, ModelConfig, reading))
    scene = Scene(profile, cluster, observations=tuple(seen))
    rules = [check for check in registry.of_stage("profile") if check is not PLAN]
    found = judge([check for check in rules if not check.needs_profile], scene)
    return tuple(finding.model_copy(update={"evidence": ()}) for finding in found)
