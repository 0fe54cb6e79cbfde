"""The plan of a pack: for every node its rank, its source, its files and whether they fit.

Pure: made of what was asked for and of what the nodes showed. Where no config.json is known yet,
the shards are left open and the node itself judges them before it writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from sparkserve import __version__
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.shard import ShardIdentity, ShardName
from sparkserve.errors import ConfigError
from sparkserve.facts import host, runtime, shards, storage
from sparkserve.facts.probe import Probe
from sparkserve.facts.shards import ShardFacts, SourceFacts
from sparkserve.model.base import Model
from sparkserve.model.engram_manifest import RowSpan
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.finding import FaultClass, Finding
from sparkserve.model.layout import Layout
from sparkserve.model.pack import PackCode, PackJob, VerifyJob
from sparkserve.model.pack_result import READY, RankPlan, ShardPlan
from sparkserve.units import GIB, format_bytes

T = TypeVar("T", bound=Model)

HUB = "https://huggingface.co"


def is_url(source: str) -> bool:
    """Whether a source is reached over http."""
    return source.startswith(("http://", "https://"))


def hub_url(repo: str, revision: str | None) -> str:
    """The folder of a repository's files on Hugging Face."""
    return f"{HUB}/{repo}/resolve/{revision or 'main'}"


@dataclass(frozen=True)
class Wish:
    """What was asked for, alike for all ranks."""

    tp: int
    layout: Layout = "columns"
    layers: tuple[int, ...] | None = None
    """None = every layer that has a table."""
    source: str | None = None
    """Directory on the nodes, or URL; None = the checkpoint that is there, else the hub."""
    source_name: str = "--source"
    """What named it, for the reason."""
    repo: str | None = None
    revision: str | None = None
    reserve_gib: float = 8.0
    verify: Literal["none", "sample", "full"] = "sample"
    chunk_mib: int = 64
    replace: bool = False


@dataclass
class _Refused(Exception):
    """A fact or a wish that keeps a node from packing."""

    code: str
    observed: str
    expected: str = ""
    fix: str = ""
    fault: FaultClass = "hardware"


def plan_rank(
    wish: Wish, node: str, rank: int, facts: NodeFacts, config: EngramConfig | None
) -> RankPlan:
    """One node's part.

    config: the Engram fields of the source, where they were read already; else those of a
        checkpoint on the node are taken.
    """
    plan = RankPlan(
        node=node,
        rank=rank,
        tp=wish.tp,
        layout=wish.layout,
        reserve_bytes=round(wish.reserve_gib * GIB),
    )
    found: list[Finding] = []
    for step in (_runtime, _source, _space, _place, _shards, _fit):
        try:
            plan = step(plan, wish, facts, config)
        except _Refused as refused:
            found.append(_finding(node, refused))
    return plan.model_copy(update={"findings": tuple(found)})


def plan_check(wish: Wish, node: str, rank: int, facts: NodeFacts) -> RankPlan:
    """One node's part of a verification; without a source it is judged by its manifest alone."""
    plan = RankPlan(node=node, rank=rank, tp=wish.tp, layout=wish.layout)
    there = shards.SOURCE.read(facts)
    try:
        plan = _runtime(plan, wish, facts, None)
        held = _need(shards.SHARDS, facts)
        plan = plan.model_copy(update={"out": held.path})
        _refuse_nothing(plan, held)
        if wish.source is not None or (isinstance(there, SourceFacts) and there.is_whole):
            return _source(plan, wish, facts, None)
    except _Refused as refused:
        return plan.model_copy(update={"findings": (_finding(node, refused),)})
    return plan.model_copy(update={"source_reason": f"no source to compare with: {_lack(there)}"})


def _refuse_nothing(plan: RankPlan, held: ShardFacts) -> None:
    """A rank without any shard has failed; one without a manifest is only unknown."""
    kind = "strided" if plan.layout == "strided" else "contiguous"
    names = [ShardName.parse(file.name) for file in held.files]
    if not any(n and (n.rank, n.tp, n.kind) == (plan.rank, plan.tp, kind) for n in names):
        raise _Refused(
            PackCode.SHORT_SHARD,
            f"no shard of rank {plan.rank} of {plan.tp}, layout {plan.layout}, in {held.path}",
            "one per Engram layer",
            "sparkserve pack",
        )


def source_config(facts: Mapping[str, NodeFacts]) -> EngramConfig | None:
    """The Engram fields of the first checkpoint on a node that has some."""
    for node in facts.values():
        found = shards.SOURCE.read(node)
        if not isinstance(found, Unobserved) and found.config is not None:
            try:
                return EngramConfig.from_config(found.config)
            except ConfigError:
                continue
    return None


def pack_job(plan: RankPlan, wish: Wish, token_file: str | None) -> PackJob:
    """What the node is told."""
    if plan.source is None:
        raise ValueError(f"{plan.node} has no source")
    return PackJob(
        source=plan.source,
        out=plan.out,
        tp=plan.tp,
        rank=plan.rank,
        layers=wish.layers,
        layout=wish.layout,
        revision=wish.revision,
        reserve_gib=wish.reserve_gib,
        verify=wish.verify,
        chunk_mib=wish.chunk_mib,
        replace=wish.replace,
        token_file=token_file,
    )


def verify_job(plan: RankPlan, wish: Wish, token_file: str | None) -> VerifyJob:
    """What the node is told to check; without a source only against the manifest."""
    return VerifyJob(
        source=plan.source,
        out=plan.out,
        tp=plan.tp,
        rank=plan.rank,
        layers=wish.layers,
        layout=wish.layout,
        revision=wish.revision,
        verify="full" if wish.verify == "full" else "sample",
        token_file=token_file,
    )


def _runtime(plan: RankPlan, wish: Wish, facts: NodeFacts, _: EngramConfig | None) -> RankPlan:
    python = runtime.PYTHON.read(facts)
    if isinstance(python, Unobserved):
        raise _Refused("ENG_LIB_SKEW", python.reason, "a Python with sparkserve on the node")
    if python.sparkserve != __version__:
        raise _Refused(
            "ENG_LIB_SKEW",
            f"{python.python} has sparkserve {python.sparkserve or 'not installed'}",
            f"sparkserve {__version__}, as here",
            f"{python.python} -m pip install sparkserve=={__version__}",
        )
    root = _need(host.IDENTITY, facts).root
    return plan.model_copy(update={"python": python.python, "root": root})


def _source(plan: RankPlan, wish: Wish, facts: NodeFacts, _: EngramConfig | None) -> RankPlan:
    source, reason = _choose(wish, shards.SOURCE.read(facts))
    return plan.model_copy(update={"source": source, "source_reason": reason})


def _choose(wish: Wish, there: SourceFacts | Unobserved) -> tuple[str, str]:
    """Where a node reads the tables, and why there."""
    if wish.source is not None and is_url(wish.source):
        return wish.source, f"named by {wish.source_name}"
    what = _lack(there)
    if isinstance(there, SourceFacts) and there.is_whole:
        why = f"named by {wish.source_name}" if wish.source else "the checkpoint on the node"
        return there.path, f"{why}, which holds the tables"
    option = "--model" if wish.source_name == "--model" else "--source"
    fix = f"{option} DIR_OR_URL names a folder that holds the tables"
    if wish.source is not None:
        expected = "the model's Engram tables there"
        raise _Refused(PackCode.SOURCE_MISSING, what, expected, fix, "config")
    if wish.repo is None:
        expected = "the tables there, or model.repo in the profile"
        raise _Refused(PackCode.SOURCE_MISSING, what, expected, fix, "config")
    revision = f"revision {wish.revision}" if wish.revision else "main, no revision is pinned"
    return hub_url(wish.repo, wish.revision), f"{what}; from the hub at {revision}"


def _lack(there: SourceFacts | Unobserved) -> str:
    """What a checkpoint directory lacks."""
    if isinstance(there, Unobserved):
        return re.sub(r"^exit \d+: ", "", there.reason)
    if not there.there:
        return f"no folder {there.path}"
    if there.config is None:
        return f"no config.json in {there.path}"
    lost = [table.file for table in there.tables if table.size_bytes is None]
    return f"{there.path} lacks {', '.join(dict.fromkeys(lost)) or 'Engram tables'}"


def _space(plan: RankPlan, wish: Wish, facts: NodeFacts, _: EngramConfig | None) -> RankPlan:
    space = _need(storage.ENGRAM_SPACE, facts)
    if not space.writable:
        raise _Refused(
            PackCode.IO, f"{space.path} is not writable", "a folder that the SSH user may write"
        )
    return plan.model_copy(update={"free_bytes": space.free_bytes})


def _place(plan: RankPlan, wish: Wish, facts: NodeFacts, _: EngramConfig | None) -> RankPlan:
    return plan.model_copy(update={"out": _need(shards.SHARDS, facts).path})


def _shards(plan: RankPlan, wish: Wish, facts: NodeFacts, config: EngramConfig | None) -> RankPlan:
    if config is None or not plan.out:
        return plan
    there = _need(shards.SHARDS, facts)
    try:
        layers = [
            config.shard(layer, wish.layout, plan.rank, wish.tp)
            for layer in wish.layers or config.layer_ids
        ]
    except ConfigError as error:
        raise _Refused(PackCode.JOB, error.message, fault="config") from error
    planned = tuple(_shard(shard, there, wish) for shard in layers)
    return plan.model_copy(update={"shards": planned})


def _fit(plan: RankPlan, wish: Wish, facts: NodeFacts, config: EngramConfig | None) -> RankPlan:
    needed, free = plan.needed_bytes or 0, plan.free_bytes
    if free is not None and needed and needed + plan.reserve_bytes > free:
        raise _Refused(
            PackCode.NO_SPACE,
            f"{format_bytes(free)} free for {plan.out}",
            f"{format_bytes(needed)} for the shards and {format_bytes(plan.reserve_bytes)} in "
            "reserve",
            "free space, name another engram.directory, or lower --reserve-gib",
        )
    return plan


def _shard(shard: ShardIdentity, there: ShardFacts, wish: Wish) -> ShardPlan:
    size = shard.header.file_bytes
    sizes = {file.name: file.size_bytes for file in there.files}
    parts = [f for f in there.files if f.name.startswith(f"{shard.file_name}.")]
    found: Literal["nothing", "part", "shard", "other"] = "nothing"
    if shard.file_name in sizes:
        found = "shard" if sizes[shard.file_name] == size else "other"
    elif parts:
        found = "part"
    written = sum(part.allocated_bytes for part in parts)
    kept = found == "shard" and not wish.replace
    return ShardPlan(
        layer=shard.layer,
        file=shard.file_name,
        ranges=tuple(RowSpan(*each) for each in shard.ranges),
        file_bytes=size,
        found=found,
        write_bytes=0 if kept else max(0, size - written),
    )


def _need(probe: Probe[T], facts: NodeFacts) -> T:
    value = probe.read(facts)
    if isinstance(value, Unobserved):
        raise _Refused("PCK_UNKNOWN", f"{probe.id} could not be read: {value.reason}")
    return value


def _finding(node: str, refused: _Refused) -> Finding:
    return Finding(
        code=refused.code,
        check_id=READY,
        title="the node can pack its rank",
        node=node,
        outcome="fail",
        severity="error",
        fault_class=refused.fault,
        verdict="FAIL",
        observed=refused.observed,
        expected=refused.expected,
        fix=refused.fix,
    )
