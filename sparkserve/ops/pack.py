"""``sparkserve pack``: every node packs its own rank's Engram rows, all at once."""

from __future__ import annotations

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.http_source import HttpFolder, Patience
from sparkserve.engram.pack_error import PackError
from sparkserve.engram.source import Checkpoint
from sparkserve.model.event import Observer
from sparkserve.model.pack_result import PackResult, RankOutcome, RankPlan
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.node_job import NodeJob
from sparkserve.ops.shards import (
    Fleet,
    FleetRun,
    Hosts,
    ShardsRequest,
    find_fleet,
    look,
    refused,
    unreachable,
)
from sparkserve.planning import pack as planning

_PHASES = 3
_ASKED_TWICE = Patience(attempts=2)


def run(request: ShardsRequest, doors: Doors, observer: Observer) -> PackResult:
    """Pack on every node that can; what keeps a node from it is part of the result.

    Raises:
        ConfigError: profile, cluster or options are wrong; nothing was touched.
        KeyboardInterrupt: before any node began to pack.
    """
    fleet = find_fleet(request, doors)
    emitter = Emitter([observer], doors.now, secrets=(fleet.token,) if fleet.token else ())
    hosts = look(fleet, doors, emitter, phases=2 if request.dry_run else _PHASES)
    try:
        plans = _plan(fleet, hosts, emitter)
        bad = [unreachable(fleet, error) for error in hosts.errors.values()]
        bad += [refused(fleet, plan) for plan in plans if plan.findings]
        for outcome in bad:
            if outcome.finding is not None:
                data = outcome.finding.model_dump(mode="json")
                emitter.emit("finding", outcome.finding.title, node=outcome.node, data=data)
        if request.dry_run:
            return PackResult(plans=plans, outcomes=_in_order(bad), dry_run=True)
        good = [plan for plan in plans if not plan.findings]
        if good:
            nodes = len(fleet.cluster.nodes)
            data = {"number": _PHASES, "of": _PHASES, "nodes": nodes}
            emitter.emit("phase", "pack", data=data)
        work = FleetRun(fleet, hosts, emitter)
        outcomes = work.run(good, lambda plan: _job(fleet, plan))
        done = _in_order([*bad, *outcomes])
        return PackResult(
            plans=plans,
            outcomes=done,
            dry_run=False,
            interrupted=work.interrupted,
            next_commands=fleet.commands.after_packing,
        )
    finally:
        hosts.close()


def _in_order(outcomes: list[RankOutcome]) -> tuple[RankOutcome, ...]:
    return tuple(sorted(outcomes, key=lambda outcome: outcome.rank))


def _job(fleet: Fleet, plan: RankPlan) -> NodeJob:
    token = fleet.token if plan.source and planning.is_url(plan.source) else None
    return NodeJob(
        command="pack",
        python=plan.python,
        root=plan.root,
        make=lambda token_file: planning.pack_job(plan, fleet.wish, token_file),
        token=token,
    )


def _plan(fleet: Fleet, hosts: Hosts, emitter: Emitter) -> tuple[RankPlan, ...]:
    named = fleet.wish.source
    if named is not None and planning.is_url(named):
        return _plans(fleet, hosts, _remote_config(fleet, named, emitter))
    plans = _plans(fleet, hosts, planning.source_config(hosts.facts))
    urls = [p.source for p in plans if p.shards is None and p.source and planning.is_url(p.source)]
    if urls:
        return _plans(fleet, hosts, _remote_config(fleet, urls[0], emitter))
    return plans


def _plans(fleet: Fleet, hosts: Hosts, config: EngramConfig | None) -> tuple[RankPlan, ...]:
    return tuple(
        planning.plan_rank(fleet.wish, name, rank, hosts.facts[name], config)
        for name, rank in fleet.ranks.items()
        if name in hosts.facts
    )


def _remote_config(fleet: Fleet, url: str, emitter: Emitter) -> EngramConfig | None:
    """The Engram fields behind a URL; None where only the nodes may reach it."""
    folder = HttpFolder(url, fleet.token, _ASKED_TWICE)
    try:
        return Checkpoint.open(folder).config
    except PackError as error:
        emitter.emit("notice", f"the source cannot be read from here: {error.message}")
        return None
    finally:
        folder.close()
