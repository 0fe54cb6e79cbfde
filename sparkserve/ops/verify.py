"""``sparkserve verify --engram``: every node judges its own rank's shards, all at once."""

from __future__ import annotations

from sparkserve.engram.shard import ShardName
from sparkserve.model.event import Observer
from sparkserve.model.pack import LayerResult, PackCode
from sparkserve.model.pack_result import RankOutcome, RankPlan, ShardVerdict, VerifyResult
from sparkserve.ops.doors import Doors, Emitter
from sparkserve.ops.node_job import NodeJob
from sparkserve.ops.shards import (
    Fleet,
    FleetRun,
    ShardsRequest,
    find_fleet,
    look,
    refused,
    unreachable,
)
from sparkserve.planning import pack as planning

_PHASES = 3


def run(request: ShardsRequest, doors: Doors, observer: Observer, *, strict: bool) -> VerifyResult:
    """Check the shards of every node that can be asked.

    strict: what is unknown counts as failed.

    Raises:
        ConfigError: profile, cluster or options are wrong.
        KeyboardInterrupt: before any node began.
    """
    fleet = find_fleet(request, doors)
    emitter = Emitter([observer], doors.now, secrets=(fleet.token,) if fleet.token else ())
    hosts = look(fleet, doors, emitter, phases=_PHASES)
    try:
        plans = [
            planning.plan_check(fleet.wish, name, rank, hosts.facts[name])
            for name, rank in fleet.ranks.items()
            if name in hosts.facts
        ]
        outcomes = [unreachable(fleet, error) for error in hosts.errors.values()]
        outcomes += [refused(fleet, plan) for plan in plans if plan.findings]
        good = [plan for plan in plans if not plan.findings]
        if good:
            nodes = len(fleet.cluster.nodes)
            emitter.emit("phase", "verify", data={"number": _PHASES, "of": _PHASES, "nodes": nodes})
        work = FleetRun(fleet, hosts, emitter)
        outcomes += work.run(good, lambda plan: _job(fleet, plan))
        outcomes.sort(key=lambda outcome: outcome.rank)
        why = {plan.node: plan.source_reason for plan in plans if plan.source is None}
        verdicts = tuple(v for o in outcomes for v in _verdicts(o, why.get(o.node, "")))
        return VerifyResult(
            verdicts=verdicts,
            outcomes=tuple(outcomes),
            interrupted=work.interrupted,
            strict=strict,
        )
    finally:
        hosts.close()


def _job(fleet: Fleet, plan: RankPlan) -> NodeJob:
    token = fleet.token if plan.source and planning.is_url(plan.source) else None
    return NodeJob(
        command="verify-engram",
        python=plan.python,
        root=plan.root,
        make=lambda token_file: planning.verify_job(plan, fleet.wish, token_file),
        token=token,
    )


def _verdicts(outcome: RankOutcome, no_source: str) -> list[ShardVerdict]:
    """A row per layer; a rank that could not be judged has one row for all it has."""
    if outcome.state == "done" or outcome.layers:
        return [_verdict(outcome, layer, no_source) for layer in outcome.layers]
    finding = outcome.finding
    name = ShardName.parse((outcome.path or "").rpartition("/")[2])
    unknown = finding is None or finding.code in (PackCode.MANIFEST, PackCode.INTERRUPTED)
    return [
        ShardVerdict(
            node=outcome.node,
            rank=outcome.rank,
            layer=name.layer if name else None,
            outcome="unknown" if unknown else "fail",
            checksums="unknown",
            against_source="unknown",
            reason=finding.observed if finding else "",
        )
    ]


def _verdict(outcome: RankOutcome, layer: LayerResult, no_source: str) -> ShardVerdict:
    if layer.failure:
        return ShardVerdict(
            node=outcome.node,
            rank=outcome.rank,
            layer=layer.layer,
            outcome="fail",
            checksums="unknown",
            against_source="unknown",
            reason=layer.failure,
        )
    compared = layer.against_source
    known = layer.checksums == "pass" or compared != "none"
    reason = no_source if compared == "none" else ""
    if layer.checksums != "pass":
        reason = "; ".join(part for part in ("no checksums were compared", reason) if part)
    return ShardVerdict(
        node=outcome.node,
        rank=outcome.rank,
        layer=layer.layer,
        outcome="pass" if known and compared != "none" else "unknown",
        checksums=layer.checksums,
        against_source="unknown" if compared == "none" else compared,
        compared_rows=layer.compared_rows,
        reader=outcome.reader,
        reason=reason,
    )
