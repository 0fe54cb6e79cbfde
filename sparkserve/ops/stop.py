"""``sparkserve stop``: end a run on all its nodes, and say what could not be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparkserve import runs
from sparkserve.errors import ConfigError, NodeError
from sparkserve.facts import runtime
from sparkserve.facts.probe import Context, collect
from sparkserve.facts.runtime import HolderFacts
from sparkserve.model.event import Observer
from sparkserve.model.facts import Unobserved
from sparkserve.model.record import RunRecord
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.node_command import node_command
from sparkserve.ops.run_choice import NEWEST, RunChoice, choose
from sparkserve.ops.target import Target, resolve_cluster
from sparkserve.runs import RunDirectory
from sparkserve.transport.host import Host, map_hosts, require

_STOP_LIMIT_S = 60.0
_ASK_LIMIT_S = 20.0
_ALIVE = ("starting", "running")
_ENDED_BY_IT = ("stopping", "stopped")


@dataclass(frozen=True)
class NodeStop:
    """What ended on one node."""

    node: str
    was: str
    """State of the rank before: ``running``, ``stopped``, ``absent`` ..."""
    survivors: tuple[int, ...] = ()
    """Processes that even SIGKILL did not end."""
    error: str | None = None
    """Why the node could not be asked; its rank may still run."""

    @property
    def clean(self) -> bool:
        """Whether nothing of the run is left there, as far as is known."""
        return self.error is None and not self.survivors


@dataclass(frozen=True)
class StopResult:
    """What came of a stop."""

    run_id: str
    """Empty where no run was named and none is there."""
    nodes: tuple[NodeStop, ...]

    @property
    def clean(self) -> bool:
        """Whether every node was reached and nothing is left."""
        return all(node.clean for node in self.nodes)


@dataclass(frozen=True)
class StopRequest:
    """Which run to end."""

    choice: RunChoice = NEWEST
    gentle: bool = True
    """Running requests may finish (some seconds)."""


def run(request: StopRequest, doors: Doors, observer: Observer) -> StopResult:
    """End a run; does nothing where it has ended already.

    A run that was launched from somewhere else is found on the nodes themselves.

    Raises:
        ConfigError: the named run is not here, nor on the nodes.
    """
    try:
        directory = choose(request.choice)
    except ConfigError as unknown:
        named = request.choice.run_id
        if named is not None and any(e.run_id.startswith(named) for e in runs.list_runs()):
            # It is known here but damaged, or one of several: not for the nodes to decide.
            raise
        return _stop_found(request, doors, observer, unknown)
    record = directory.record()
    emitter = Emitter([observer], doors.now, record.run_id)
    emitter.emit("phase", f"stop {record.run_id}")
    group = doors.connect(record.cluster)
    hosts = group.values_by_node
    try:
        ended = stop_ranks(hosts, record, emitter, gentle=request.gentle)
    finally:
        for host in hosts.values():
            host.close()
    result = StopResult(record.run_id, (*ended, *_unreached(group.errors_by_node)))
    if result.clean:
        _remember(directory, doors)
    return result


def stop_ranks(
    hosts: Mapping[str, Host], record: RunRecord, emitter: Emitter, *, gentle: bool
) -> tuple[NodeStop, ...]:
    """End the run on the given nodes, all at once: a stop on one rank ends them all anyway."""
    mine = [hosts[node.name] for node in record.cluster.nodes if node.name in hosts]
    group = map_hosts(
        mine,
        lambda host: _stop_rank(
            host,
            python=record.pythons[host.name],
            run_dir=record.run_dirs[host.name],
            gentle=gentle,
        ),
    )
    ended = _as_found([*group.values_by_node.values(), *_unreached(group.errors_by_node)])
    for node in ended:
        told = {"clean": node.clean}
        message = node.error or f"was {node.was}, nothing left"
        if node.survivors:
            message = f"processes {', '.join(map(str, node.survivors))} cannot be ended"
        emitter.emit(
            "state", message, node=node.node, rank=record.cluster.rank_of(node.node), data=told
        )
    return tuple(ended)


def _as_found(ended: list[NodeStop]) -> list[NodeStop]:
    """What the ranks were before this stop: the first one to be stopped ends the others too."""
    if not any(node.was in _ALIVE for node in ended):
        return ended
    return [replace(node, was="running") if node.was in _ENDED_BY_IT else node for node in ended]


def _stop_found(
    request: StopRequest, doors: Doors, observer: Observer, unknown: ConfigError
) -> StopResult:
    """Stop the run that holds the nodes although nothing here knows of it."""
    file, _ = resolve_cluster(Target(cluster=request.choice.cluster))
    group = doors.connect(file.cluster)
    hosts = group.values_by_node
    try:
        context = Context(root=file.cluster.root)
        facts = collect(list(hosts.values()), (runtime.HOLDER,), context, timeout_s=_ASK_LIMIT_S)
        held = {node: runtime.HOLDER.read(found) for node, found in facts.items()}
        silent = {**group.errors_by_node, **facts.errors_by_node}
        unclear = _unclear(held)
        wanted = request.choice.run_id or ""
        found = _holders(held, wanted)
        run_ids = sorted({str(holder.run_id) for holder in found.values()})
        if not run_ids:
            if wanted:
                raise unknown
            return StopResult("", (*_unreached(silent), *unclear))
        if len(run_ids) > 1:
            raise ConfigError(
                f"the nodes serve {', '.join(run_ids)}, expected the id of one of them",
                hint=f"sparkserve stop {run_ids[0]}",
            )
        Emitter([observer], doors.now, run_ids[0]).emit(
            "phase", f"stop {run_ids[0]}, launched elsewhere, found on {', '.join(found)}"
        )
        ended = map_hosts(
            [hosts[node] for node in found],
            lambda host: _stop_rank(
                host,
                python=str(found[host.name].python),
                run_dir=str(found[host.name].run_dir),
                gentle=request.gentle,
            ),
        )
    finally:
        for host in hosts.values():
            host.close()
    stopped = _as_found(list(ended.values_by_node.values()))
    unreached = _unreached({**silent, **ended.errors_by_node})
    return StopResult(run_ids[0], (*stopped, *unreached, *unclear))


def _holders(held: Mapping[str, HolderFacts | Unobserved], wanted: str) -> dict[str, HolderFacts]:
    """The nodes held by a run whose id begins like that, with all that stopping it needs."""
    return {
        node: holder
        for node, holder in held.items()
        if not isinstance(holder, Unobserved) and (holder.run_id or "").startswith(wanted)
        if holder.run_id and holder.run_dir and holder.python
    }


def _unclear(held: Mapping[str, HolderFacts | Unobserved]) -> tuple[NodeStop, ...]:
    """Nodes that answered but did not tell what they serve: that is not nothing."""
    return tuple(
        NodeStop(node, "unknown", error=f"{node}: cannot tell what it serves: {holder.reason}")
        for node, holder in held.items()
        if isinstance(holder, Unobserved)
    )


def _unreached(errors: Mapping[str, NodeError]) -> tuple[NodeStop, ...]:
    return tuple(NodeStop(name, "unknown", error=error.message) for name, error in errors.items())


def _stop_rank(host: Host, *, python: str, run_dir: str, gentle: bool) -> NodeStop:
    argv = [
        *node_command(python, "stop", "--run-dir", run_dir),
        *([] if gentle else ["--now"]),
    ]
    result = require(host.run(argv, timeout_s=_STOP_LIMIT_S), "stop failed")
    try:
        answer = json.loads(result.stdout.strip().splitlines()[-1])
        return NodeStop(host.name, str(answer["was"]), tuple(answer["survivors"]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise NodeError(host.name, f"stop answered {result.tail(2)!r}") from error


def _remember(directory: RunDirectory, doors: Doors) -> None:
    record = directory.record()
    if record.outcome in ("launching", "serving"):
        directory.write_record(
            record.model_copy(update={"outcome": "stopped", "updated_at": doors.now()})
        )
