"""What packing and checking of Engram shards share: whose, where, and one job per node at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from sparkserve import clusters
from sparkserve.errors import ConfigError, ExitCode, NodeError
from sparkserve.facts import registry
from sparkserve.facts.probe import Context, collect
from sparkserve.model.cluster import Cluster
from sparkserve.model.event import EventKind
from sparkserve.model.facts import NodeFacts
from sparkserve.model.finding import Finding
from sparkserve.model.layout import Layout
from sparkserve.model.pack import (
    PackCode,
    PackDone,
    PackEvent,
    PackFailed,
    PackPlanned,
    PackProgress,
    PackWarning,
)
from sparkserve.model.pack_result import RankOutcome, RankPlan
from sparkserve.model.profile import THIS_PYTHON
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.keyfile import read_token
from sparkserve.ops.node_job import Ears, NodeJob, run_job
from sparkserve.ops.shard_commands import ShardCommands, shard_commands
from sparkserve.ops.target import Target, resolve
from sparkserve.planning.pack import Wish, is_url
from sparkserve.transport.host import Host

_LOCAL_PATIENCE_S = 60.0
_FACTS_S = 45.0


@dataclass(frozen=True)
class LocalRank:
    """One rank on this machine, without any profile."""

    out: str
    tp: int
    rank: int
    model: str | None = None
    """Directory or URL of the checkpoint."""


@dataclass(frozen=True)
class ShardsRequest:
    """Whose shards, and how; None = as the profile says."""

    target: Target
    this_python: str
    local: LocalRank | None = None
    layers: tuple[int, ...] | None = None
    layout: Layout | None = None
    source: str | None = None
    token_file: str | None = None
    verify: Literal["none", "sample", "full"] = "sample"
    reserve_gib: float = 8.0
    chunk_mib: int = 64
    replace: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Fleet:
    """The nodes and what is asked of them."""

    cluster: Cluster
    ranks: Mapping[str, int]
    """Node name -> its rank."""
    wish: Wish
    context: Context
    commands: ShardCommands
    """To go on with the same shards."""
    patience_s: float
    token: str | None
    reasons: tuple[str, ...] = ()


@dataclass
class Hosts:
    """The nodes that answered, and the errors of the others."""

    hosts: dict[str, Host]
    errors: dict[str, NodeError]
    facts: dict[str, NodeFacts] = field(default_factory=dict)

    def close(self) -> None:
        """Close every connection."""
        for host in self.hosts.values():
            host.close()


def find_fleet(request: ShardsRequest, doors: Doors) -> Fleet:
    """Resolve profile and nodes, or the one rank that the options describe.

    Raises:
        ConfigError: unknown or contradictory names and values; a token file that others can read.
    """
    token = read_token(request.token_file)
    if request.local is not None:
        return _local_fleet(request, request.local, token)
    resolved = resolve(request.target, doors.environment)
    profile = resolved.profile.profile
    if profile.engram.directory is None:
        raise ConfigError(
            f"profile {profile.name} names no engram.directory, so it serves no packed rows",
            hint="sparkserve profile show " + profile.name,
        )
    python = profile.engine.python
    if python == THIS_PYTHON and not all(node.is_local for node in resolved.cluster.nodes):
        raise ConfigError(
            "engine.python = this means this machine, expected a path on the nodes",
            hint="add --set engine.python=/path/to/python",
        )
    source = request.source or profile.engram.source
    source_name = "--source" if request.source else "engram.source"
    _check_source(source_name, source)
    wish = replace(
        _wish(request, profile.parallel.tp, source),
        layout=request.layout or profile.engram.layout,
        source_name=source_name,
        repo=profile.model.repo,
        revision=profile.model.revision,
    )
    _check_token(token, wish)
    return Fleet(
        cluster=resolved.cluster,
        ranks={node.name: rank for rank, node in enumerate(resolved.cluster.nodes)},
        wish=wish,
        context=Context(
            root=resolved.cluster.root,
            python=request.this_python if python == THIS_PYTHON else python,
            model_path=source if source and not is_url(source) else profile.model.path,
            engram_dir=profile.engram.directory,
        ),
        commands=shard_commands(request, request.target.profile or profile.name),
        patience_s=profile.limits.no_progress_s,
        token=token,
        reasons=resolved.reasons,
    )


def _local_fleet(request: ShardsRequest, local: LocalRank, token: str | None) -> Fleet:
    if not 0 <= local.rank < local.tp:
        raise ConfigError(f"--rank {local.rank} of --tp {local.tp}, expected 0 to {local.tp - 1}")
    _check_source("--model", local.model)
    cluster = clusters.this_machine()
    wish = replace(_wish(request, local.tp, local.model), source_name="--model")
    _check_token(token, wish)
    return Fleet(
        cluster=cluster,
        ranks={cluster.nodes[0].name: local.rank},
        wish=wish,
        context=Context(
            root=cluster.root,
            python=request.this_python,
            model_path=local.model if local.model and not is_url(local.model) else None,
            engram_dir=local.out,
        ),
        commands=shard_commands(request, None),
        patience_s=_LOCAL_PATIENCE_S,
        token=token,
    )


def _wish(request: ShardsRequest, tp: int, source: str | None) -> Wish:
    return Wish(
        tp=tp,
        layout=request.layout or "columns",
        layers=request.layers,
        source=source,
        reserve_gib=request.reserve_gib,
        verify=request.verify,
        chunk_mib=request.chunk_mib,
        replace=request.replace,
    )


def _check_source(named_by: str, source: str | None) -> None:
    if source is None or "://" not in source:
        return
    address = urlsplit(source)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(
            f"{named_by} {source}, expected a directory, or the http(s) address of a folder",
            hint=f"{named_by} https://HOST/FOLDER",
        )
    if address.password is not None:
        raise ConfigError(
            f"{named_by} holds a password, which every log would show",
            hint="leave it out; --token-file FILE sends a token",
        )


def _check_token(token: str | None, wish: Wish) -> None:
    if token is not None and wish.source is not None and not is_url(wish.source):
        raise ConfigError(f"--token-file is for an http(s) source, the source is {wish.source}")


def look(fleet: Fleet, doors: Doors, emitter: Emitter, *, phases: int) -> Hosts:
    """Connect and read the facts; a node that cannot be used does not hide the others.

    phases: how many phases the command has; connect and facts are the first two.
    """
    for reason in fleet.reasons:
        emitter.emit("notice", reason)
    place = {"of": phases, "nodes": len(fleet.cluster.nodes)}
    emitter.emit("phase", "connect", data={"number": 1, **place})
    group = doors.connect(fleet.cluster)
    found = Hosts(dict(group.values_by_node), dict(group.errors_by_node))
    try:
        emitter.emit("phase", "facts", data={"number": 2, **place})
        hosts = list(found.hosts.values())
        answers = collect(hosts, registry.PACK, fleet.context, timeout_s=_FACTS_S)
    except BaseException:
        found.close()
        raise
    found.facts = dict(answers.values_by_node)
    found.errors |= answers.errors_by_node
    return found


def unreachable(fleet: Fleet, error: NodeError) -> RankOutcome:
    """The outcome of a node that could not be used."""
    away = error.exit_code == ExitCode.UNREACHABLE
    finding = Finding(
        code="NET_UNREACHABLE" if away else "PCK_DIED",
        check_id="PACK.RUN",
        title="the node did its part",
        node=error.node,
        outcome="fail",
        severity="error",
        fault_class="reach",
        verdict="FAIL",
        observed=error.message.removeprefix(f"{error.node}: "),
        fix=error.hint or "",
    )
    return RankOutcome(
        node=error.node,
        rank=fleet.ranks[error.node],
        state="failed",
        finding=finding,
        exit_code=int(ExitCode.UNREACHABLE if away else ExitCode.FINDINGS),
    )


def refused(fleet: Fleet, plan: RankPlan) -> RankOutcome:
    """The outcome of a node that cannot do its part."""
    first = _mended(fleet, plan.findings[0])
    return RankOutcome(
        node=plan.node,
        rank=plan.rank,
        state="failed",
        finding=first,
        exit_code=int(first.exit_code),
    )


def _mended(fleet: Fleet, finding: Finding) -> Finding:
    return finding.model_copy(update={"fix": fleet.commands.named(finding.fix)})


MakeJob = Callable[[RankPlan], NodeJob]


@dataclass
class FleetRun:
    """One job per node, at once; one node's failure lets the others finish."""

    fleet: Fleet
    hosts: Hosts
    emitter: Emitter
    cancel: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False

    def run(self, plans: Sequence[RankPlan], make: MakeJob) -> list[RankOutcome]:
        """Run the jobs of all plans; Ctrl-C ends them everywhere, and they keep their work."""
        if not plans:
            return []
        pool = ThreadPoolExecutor(len(plans), thread_name_prefix="shards")
        futures = [pool.submit(self._one, plan, make(plan)) for plan in plans]
        try:
            wait(futures)
        except KeyboardInterrupt:
            self.interrupted = True
            self.emitter.emit("phase", "stop the packers")
            self.cancel.set()
            wait(futures)
        finally:
            self.cancel.set()
            pool.shutdown(wait=False)
        return [future.result() for future in futures]

    def _one(self, plan: RankPlan, job: NodeJob) -> RankOutcome:
        self._state(plan, "running")
        ears = Ears(
            on_event=lambda event: self._tell(plan, event),
            on_notice=lambda text: self.emitter.emit("notice", text, node=plan.node),
            cancel=self.cancel,
            patience_s=self.fleet.patience_s,
        )
        begun_s = time.monotonic()
        try:
            end = run_job(self.hosts.hosts[plan.node], job, ears)
        except NodeError as error:
            outcome = unreachable(self.fleet, error)
        else:
            outcome = _outcome(plan, end, time.monotonic() - begun_s)
            if outcome.finding is not None:
                mended = _mended(self.fleet, outcome.finding)
                outcome = outcome.model_copy(update={"finding": mended})
        reason = outcome.finding.observed if outcome.finding else ""
        self._state(plan, outcome.state, reason)
        return outcome

    def _state(self, plan: RankPlan, state: str, reason: str = "") -> None:
        data = {"state": state, "reason": reason}
        self.emitter.emit("state", node=plan.node, rank=plan.rank, data=data)

    def _tell(self, plan: RankPlan, event: PackEvent) -> None:
        kind, message = _as_event(plan.node, event)
        data = event.model_dump(mode="json")
        self.emitter.emit(kind, message, node=plan.node, rank=plan.rank, data=data)


def _as_event(node: str, event: PackEvent) -> tuple[EventKind, str]:
    """How a node's word is told to observers."""
    match event:
        case PackProgress():
            return "progress", event.phase
        case PackWarning():
            return "notice", f"{node}: {event.message} ({event.code})"
        case PackPlanned():
            told = ", ".join(f"layer {layer.layer}: {layer.action}" for layer in event.layers)
            return "step", told
        case _:
            return "report", event.event


def _outcome(plan: RankPlan, end: PackDone | PackFailed, elapsed_s: float) -> RankOutcome:
    if isinstance(end, PackDone):
        return RankOutcome(
            node=plan.node,
            rank=plan.rank,
            state="done",
            layers=end.layers,
            manifest=end.manifest,
            seconds=end.seconds,
            written_bytes=end.written_bytes,
            reader=end.reader,
        )
    # The message of most failures begins with the place already.
    told = end.message if end.path in (None, "") or str(end.path) in end.message else None
    finding = Finding(
        code=end.code,
        check_id="PACK.RUN",
        title="the node did its part",
        node=plan.node,
        outcome="fail",
        severity="error",
        verdict="FAIL",
        observed=told or f"{end.path}: {end.message}",
        fix=end.hint or "",
    )
    stopped = end.code == PackCode.INTERRUPTED
    return RankOutcome(
        node=plan.node,
        rank=plan.rank,
        state="interrupted" if stopped else "failed",
        finding=finding,
        seconds=round(elapsed_s, 3),
        exit_code=end.exit_code,
        path=end.path,
        layers=end.layers,
        reader=end.reader,
    )
