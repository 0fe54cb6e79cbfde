"""Plans, outcomes and events of packing, as four nodes would give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sparkserve.facts.shards import ShardFacts
from sparkserve.facts.storage import SpaceFacts
from sparkserve.model.event import Event
from sparkserve.model.finding import Finding
from sparkserve.model.pack import LayerResult, PackProgress
from sparkserve.model.pack_result import (
    PackResult,
    RankOutcome,
    RankPlan,
    ShardVerdict,
    VerifyResult,
)
from sparkserve.planning import pack
from sparkserve.planning.pack import Wish
from tests import packed, scenes

GIB = 1 << 30
BEGIN = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
FULL = Finding(
    code="PCK_DISK_FULL",
    check_id="PACK.RUN",
    title="the node did its part",
    node="spark3",
    outcome="fail",
    severity="error",
    verdict="FAIL",
    observed=f"{packed.FOLDER}/engram-l14-r2of4.bin: No space left on device while writing",
    fix=f"df -h {packed.FOLDER}",
)


def plans() -> tuple[RankPlan, ...]:
    """Four nodes: one holds the checkpoint, one has too little space."""
    wish = Wish(tp=4, repo="org/v41", revision="dba1be0a")
    nothing = packed.source(there=False, config=None, tables=())
    found = []
    for rank in range(wish.tp):
        free = 40 if rank == 3 else 900
        space = SpaceFacts(
            path="/srv", free_bytes=free * GIB, total_bytes=3600 * GIB, writable=True
        )
        facts = scenes.facts(
            rank + 1,
            engram_shards=ShardFacts(path=packed.FOLDER, there=False),
            engram_source=nothing if rank else packed.source(),
            storage_engram=space,
        )
        found.append(pack.plan_rank(wish, f"spark{rank + 1}", rank, facts, packed.MODEL))
    return tuple(found)


def outcome(rank: int, **changes: Any) -> RankOutcome:
    """A rank that packed both layers in 60 s."""
    shards = packed.identities(rank, 4)
    layers = tuple(
        LayerResult(
            layer=shard.layer,
            file=shard.file_name,
            file_bytes=shard.header.file_bytes,
            sha256="5" * 64,
            action="packed",
            checksums="pass",
            against_source="sample",
            compared_rows=1037,
        )
        for shard in shards
    )
    values = {
        "node": f"spark{rank + 1}",
        "rank": rank,
        "state": "done",
        "layers": layers,
        "manifest": f"{packed.FOLDER}/manifest-r{rank}of4.json",
        "seconds": 60.0 + rank,
        "written_bytes": sum(layer.file_bytes for layer in layers),
        "reader": "io_uring",
    }
    return RankOutcome.model_validate(values | changes)


def failed(rank: int = 2) -> RankOutcome:
    return outcome(
        rank, state="failed", layers=(), manifest=None, written_bytes=0, seconds=12.5, finding=FULL,
        exit_code=4, path=f"{packed.FOLDER}/engram-l14-r2of4.bin",
    )  # fmt: skip


def dry_run() -> PackResult:
    made = plans()
    bad = [
        RankOutcome(
            node=plan.node, rank=plan.rank, state="failed", finding=plan.findings[0], exit_code=4
        )
        for plan in made
        if plan.findings
    ]
    return PackResult(plans=made, outcomes=tuple(bad), dry_run=True)


def result(*outcomes: RankOutcome, **changes: Any) -> PackResult:
    values: dict[str, Any] = {
        "plans": plans(),
        "outcomes": outcomes or tuple(outcome(rank) for rank in range(4)),
        "dry_run": False,
        "next_commands": (
            "sparkserve verify --engram --profile v41",
            "sparkserve launch --profile v41",
        ),
    }
    return PackResult.model_validate(values | changes)


def verified(*, strict: bool = False) -> VerifyResult:
    """One rank passes, one cannot be compared, one has a wrong bit, one has no manifest."""
    verdicts = [
        ShardVerdict(
            node="spark1", rank=0, layer=layer, outcome="pass", checksums="pass",
            against_source="sample", compared_rows=1037, reader="io_uring",
        )
        for layer in (1, 14)
    ]  # fmt: skip
    verdicts += [
        ShardVerdict(
            node="spark2", rank=1, layer=layer, outcome="unknown", checksums="pass",
            against_source="unknown", reason="no source to compare with: no folder /srv/v41",
        )
        for layer in (1, 14)
    ]  # fmt: skip
    wrong = FULL.model_copy(
        update={
            "code": "PCK_VERIFY",
            "observed": f"{packed.FOLDER}/engram-l14-r2of4.bin at byte 1324113: row 5000 of the "
            "file differs from the source",
            "fix": "sparkserve pack --replace packs it anew",
        }
    )
    none = FULL.model_copy(
        update={
            "code": "PCK_MANIFEST",
            "node": "spark4",
            "observed": "no manifest-r3of4.json here: packing never ended",
            "fix": "sparkserve pack",
        }
    )
    common = {"checksums": "unknown", "against_source": "unknown"}
    verdicts += [
        ShardVerdict.model_validate(
            {"node": "spark3", "rank": 2, "layer": 14, "outcome": "fail", "reason": wrong.observed}
            | common
        ),
        ShardVerdict.model_validate(
            {"node": "spark4", "rank": 3, "layer": None, "outcome": "unknown",
             "reason": none.observed} | common
        ),
    ]  # fmt: skip
    outcomes = (
        outcome(0), outcome(1),
        failed().model_copy(update={"finding": wrong, "exit_code": 1}),
        failed(3).model_copy(update={"node": "spark4", "finding": none, "exit_code": 1}),
    )  # fmt: skip
    return VerifyResult(
        verdicts=tuple(verdicts), outcomes=outcomes, interrupted=False, strict=strict
    )


def events() -> list[Event]:
    """Four nodes in the middle of it: hashing, packing at two paces, and one that failed."""
    found: list[Event] = []

    def tell(
        second: float, kind: str, message: str = "", rank: int | None = None, **data: Any
    ) -> None:
        found.append(
            Event.model_validate({
                "at": BEGIN + timedelta(seconds=second), "kind": kind, "message": message,
                "rank": rank, "node": None if rank is None else f"spark{rank + 1}", "data": data,
            })
        )  # fmt: skip

    tell(0, "notice", "default cluster lab")
    tell(0, "phase", "connect", number=1, of=3, nodes=4)
    tell(0.5, "phase", "facts", number=2, of=3, nodes=4)
    tell(1, "phase", "pack", number=3, of=3, nodes=4)
    for rank in range(4):
        tell(1, "state", "", rank, state="running")
    need = 50_688_963_344
    for rank, (phase, share, rate) in enumerate(
        [
            ("pack", 0.25, 812 << 20),
            ("pack", 0.124, 403 << 20),
            ("hash", 0.5, 2 << 30),
            ("pack", 0.9, 0),
        ]
    ):
        done = PackProgress(
            layer=1, phase=phase, done_bytes=round(need * share), total_bytes=need,
            bytes_per_s=rate,
        )  # fmt: skip
        tell(16, "progress", phase, rank, **done.model_dump(mode="json"))
    tell(17, "state", "", 3, state="failed", reason="No space left on device while writing")
    return found
