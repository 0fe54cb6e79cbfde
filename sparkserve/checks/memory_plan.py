"""The memory plan of a launch as findings, by what every node has available now."""

from __future__ import annotations

from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed, unknown
from sparkserve.checks.scene import Scene
from sparkserve.facts import memory, runtime
from sparkserve.model.facts import Unobserved
from sparkserve.planning.memory import build
from sparkserve.planning.memory_types import MemoryPlan, NodeMemory, Verdict
from sparkserve.planning.memory_wish import figures_of, wish_of
from sparkserve.units import GIB


def memory_findings(scene: Scene) -> Iterator[Judgement]:
    """Judge the plan of the scene's profile over the memory that its nodes have now.

    Nothing is said where nothing is known of the model, for engines that do not run on a GB10,
    and of nodes that serve already: their memory is taken by what they serve.
    """
    profile = scene.profile
    figures = figures_of(profile)
    if figures is None or profile.engine.device != "cuda" or profile.engine.kind == "light":
        return
    nodes: list[NodeMemory] = []
    for _, node, facts in scene.nodes():
        holder = runtime.HOLDER.read(facts)
        if not isinstance(holder, Unobserved) and holder.run_id is not None:
            return
        read = memory.MEMINFO.read(facts)
        if isinstance(read, Unobserved):
            yield unknown(node, read)
            continue
        nodes.append(NodeMemory(
            node=node, available_gib=read.available_bytes / GIB,
            total_gib=read.total_bytes / GIB, source="read from the node",
        ))  # fmt: skip
    if len(nodes) == len(scene.cluster.nodes):
        yield from _told(build(wish_of(profile, nodes, figures)))


def _told(plan: MemoryPlan) -> Iterator[Judgement]:
    judged = {verdict.node for verdict in plan.verdicts if verdict.level != "unknown"}
    for verdict in plan.verdicts:
        if verdict.level != "unknown":
            yield _judgement(verdict)
    for rank in plan.ranks:
        if rank.node not in judged and rank.free_gib is not None:
            yield passed(
                rank.node, f"{rank.available_gib:.1f} GiB available, {rank.free_gib:.1f} GiB left"
            )


def _judgement(verdict: Verdict) -> Judgement:
    pool = verdict.term in ("KV pin", "KV pool")
    return Judgement(
        verdict.node, "fail", observed=f"{verdict.term}: {verdict.observed}",
        expected=verdict.expected,
        why=f"{verdict.rule} does not hold",
        fix=f"sparkserve launch {verdict.mend}" if verdict.mend else "sparkserve plan --live",
        code="MEM_KV_POOL_SMALL" if pool else None,
        severity="error" if verdict.level == "refuse" else "warning",
    )  # fmt: skip


PLAN = Check(
    id="MEM.PLAN", code="MEM_PLAN", also=("MEM_KV_POOL_SMALL",),
    title="The memory plan fits the memory that the nodes have now",
    stages=("launch", "doctor"), severity="error", fault_class="memory",
    needs=(memory.MEMINFO, runtime.HOLDER), judge=memory_findings,
    why="weights, pools, graphs and prefill come from one pool of memory; what does not fit ends "
    "the engine after minutes, or takes the node down",
    fix="sparkserve plan shows every term and the nearest value that fits",
    symptom="out of memory at the KV pool or at graph capture, or a node that answers nothing "
    "while it serves long prompts",
)  # fmt: skip
CHECKS: tuple[Check, ...] = (PLAN,)
