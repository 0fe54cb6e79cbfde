"""The plan of a pack: published sizes, the choice of a source, and what keeps a node from it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from sparkserve.facts import runtime, storage
from sparkserve.facts.shards import ShardFacts, ShardFile
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.layout import Layout
from sparkserve.model.pack_result import RankPlan
from sparkserve.planning import pack
from sparkserve.planning.pack import Wish
from tests import packed, scenes

GIB = 1 << 30
EMPTY = ShardFacts(path=packed.FOLDER, there=False)
TABLE = packed.source().tables[0]
GONE = packed.source(there=False, config=None, tables=())


def node(**changes: Any) -> NodeFacts:
    """A bare Spark that holds the checkpoint and has a terabyte free."""
    space = storage.SpaceFacts(
        path="/srv", free_bytes=1000 * GIB, total_bytes=3600 * GIB, writable=True
    )
    values = {"engram_shards": EMPTY, "engram_source": packed.source(), "storage_engram": space}
    return scenes.facts(1, **(values | changes))


def planned(wish: Wish, rank: int = 0, **changes: Any) -> RankPlan:
    return pack.plan_rank(wish, "spark1", rank, node(**changes), packed.MODEL)


# Bytes of both layers' files by rank, from published packs of the released model.
COLUMNS = {
    2: [(50688463456, 50689856320), (50689173088, 50690555920)],
    3: [(33792236416, 33793136656), (33792546352, 33793507312), (33792857872, 33793772368)],
    4: [
        (25344152992, 25344810352), (25344314560, 25345050064),
        (25344509392, 25345204768), (25344667792, 25345355248),
    ],
}  # fmt: skip


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_sizes_are_the_published_ones(tp: int) -> None:
    for rank, sizes in enumerate(COLUMNS[tp]):
        plan = planned(Wish(tp=tp), rank)
        assert tuple(shard.file_bytes for shard in plan.shards or ()) == sizes
        assert plan.needed_bytes == sum(sizes)
    equal = planned(Wish(tp=tp, layout="equal"))
    assert (equal.shards or ())[0].file_bytes == {2: 50688818272, 3: 33792546880, 4: 25344411184}[
        tp
    ]


def test_strided_rank_owns_its_columns() -> None:
    (first, second) = planned(Wish(tp=4, layout="strided"), 1).shards or ()
    assert (first.file, first.rows, len(first.ranges)) == (
        "engram-l1-r1of4.strided.bin", 96001494, 6,
    )  # fmt: skip
    assert second.rows == 96004134


@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5, 8])
def test_ranks_together_own_every_row_once(tp: int, layout: Layout) -> None:
    wish = Wish(tp=tp, layout=layout)
    spans = sorted(
        span for rank in range(tp) for span in (planned(wish, rank).shards or ())[0].ranges
    )
    assert spans[0][0] == 0
    assert spans[-1][1] == 384006168
    assert all(left[1] == right[0] for left, right in itertools.pairwise(spans))


def test_whole_checkpoint_on_the_node_is_the_source() -> None:
    plan = planned(Wish(tp=4, repo="org/model"))
    assert plan.source == packed.source().path
    assert plan.source_reason == "the checkpoint on the node, which holds the tables"


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (GONE, "no folder /srv/sparkserve/checkpoints/v41"),
        (packed.source(config=None), "no config.json in /srv/sparkserve/checkpoints/v41"),
        (packed.source(tables=()), "/srv/sparkserve/checkpoints/v41 lacks Engram tables"),
        (
            packed.source(
                tables=(packed.source().tables[0].model_copy(update={"size_bytes": None}),)
            ),
            "lacks model-00047-of-00048.safetensors",
        ),
        (Unobserved(reason="exit 3: no checkpoint directory is named"), "no checkpoint directory"),
    ],
)
def test_without_one_it_is_the_hub_and_the_reason_is_told(there: Any, why: str) -> None:
    plan = planned(Wish(tp=4, repo="org/model", revision="dba1be0a"), engram_source=there)
    assert plan.source == "https://huggingface.co/org/model/resolve/dba1be0a"
    assert why in plan.source_reason
    assert plan.source_reason.endswith("from the hub at revision dba1be0a")
    unpinned = planned(Wish(tp=4, repo="org/model"), engram_source=there)
    assert unpinned.source == "https://huggingface.co/org/model/resolve/main"
    assert "no revision is pinned" in unpinned.source_reason


def test_named_source_wins_and_must_hold_the_tables() -> None:
    url = planned(Wish(tp=4, source="http://nas/v41", repo="org/model"))
    assert (url.source, url.source_reason) == ("http://nas/v41", "named by --source")
    wish = Wish(tp=4, source="/mnt/nfs/v41", source_name="engram.source", repo="org/model")
    lacking = planned(wish, engram_source=GONE)
    assert [finding.code for finding in lacking.findings] == ["PCK_SOURCE_MISSING"]
    assert lacking.source is None


def test_model_that_no_hub_has_needs_a_source() -> None:
    (finding,) = planned(Wish(tp=4), engram_source=GONE).findings
    assert finding.code == "PCK_SOURCE_MISSING"
    assert "--source" in finding.fix


def held(*files: ShardFile) -> ShardFacts:
    return ShardFacts(path=packed.FOLDER, there=True, files=files)


def test_whole_shards_need_no_space_and_parts_only_the_rest() -> None:
    first, second = packed.identities(0, 4)
    size = second.header.file_bytes
    part = ShardFile(
        name=f"{second.file_name}.partial", size_bytes=size, allocated_bytes=size - 1000
    )
    there = held(packed.shard_file(first), part)
    plan = planned(Wish(tp=4), engram_shards=there)
    assert [shard.found for shard in plan.shards or ()] == ["shard", "part"]
    assert plan.needed_bytes == 1000
    anew = planned(Wish(tp=4, replace=True), engram_shards=held(packed.shard_file(first)))
    assert anew.needed_bytes == first.header.file_bytes + size


def test_file_of_another_size_is_told() -> None:
    first = packed.identities(0, 4)[0]
    there = held(packed.shard_file(first, size_bytes=5))
    assert [shard.found for shard in planned(Wish(tp=4), engram_shards=there).shards or ()] == [
        "other", "nothing",
    ]  # fmt: skip


def space(free_bytes: int, *, writable: bool = True) -> storage.SpaceFacts:
    return storage.SpaceFacts(
        path="/mnt", free_bytes=free_bytes, total_bytes=99 * GIB, writable=writable
    )


def test_space_must_hold_the_shards_and_the_reserve() -> None:
    need = sum(COLUMNS[4][0])
    wish = Wish(tp=4)
    assert planned(wish, storage_engram=space(need + 8 * GIB)).findings == ()
    (finding,) = planned(wish, storage_engram=space(need + 8 * GIB - 1)).findings
    assert (finding.code, finding.exit_code) == ("PCK_NO_SPACE", 4)
    assert finding.expected == "47.2 GiB for the shards and 8.0 GiB in reserve"
    less = replace(wish, reserve_gib=0.0)
    assert planned(less, storage_engram=space(need)).findings == ()


def test_everything_that_keeps_a_node_from_packing_is_told_at_once() -> None:
    plan = planned(
        Wish(tp=4),
        engram_source=GONE,
        storage_engram=space(0, writable=False),
        runtime_python=Unobserved(reason="exit 3: no interpreter at /x/python"),
    )
    assert [finding.code for finding in plan.findings] == [
        "ENG_LIB_SKEW", "PCK_SOURCE_MISSING", "PCK_IO",
    ]  # fmt: skip


def test_other_sparkserve_on_the_node_is_refused() -> None:
    old = runtime.PYTHON.read(scenes.facts(1)).model_copy(update={"sparkserve": "0.0.1"})
    (finding,) = planned(Wish(tp=4), runtime_python=old).findings
    assert "has sparkserve 0.0.1" in finding.observed


def test_layer_without_a_table_is_a_mistake_in_the_command() -> None:
    (finding,) = planned(Wish(tp=4, layers=(1, 2))).findings
    assert (finding.code, finding.exit_code) == ("PCK_JOB", 2)
    only = planned(Wish(tp=4, layers=(14,)))
    assert [shard.layer for shard in only.shards or ()] == [14]


def test_unknown_model_leaves_the_shards_open() -> None:
    plan = pack.plan_rank(Wish(tp=4, source="http://nas/v41"), "spark1", 0, node(), None)
    assert (plan.shards, plan.needed_bytes, plan.findings) == (None, None, ())


def test_job_holds_what_was_wished() -> None:
    wish = Wish(tp=4, layout="strided", revision="dba1be0a", verify="full", reserve_gib=1.0)
    plan = pack.plan_rank(wish, "spark1", 2, node(), packed.MODEL)
    job = pack.pack_job(plan, wish, "/srv/t.token")
    assert (job.rank, job.tp, job.layout, job.revision) == (2, 4, "strided", "dba1be0a")
    assert (job.out, job.source) == (packed.FOLDER, packed.source().path)
    assert (job.verify, job.reserve_gib, job.token_file) == ("full", 1.0, "/srv/t.token")


def test_check_without_a_source_says_why_and_still_checks_the_manifest() -> None:
    facts = node(engram_source=GONE, engram_shards=packed.shards(0, 4))
    plan = pack.plan_check(Wish(tp=4, repo="org/model"), "spark1", 0, facts)
    assert (plan.source, plan.findings) == (None, ())
    assert plan.source_reason.startswith("no source to compare with: no folder")
    assert pack.verify_job(plan, Wish(tp=4), None).source is None


def test_check_of_a_rank_without_any_shard_fails() -> None:
    facts = node(engram_shards=packed.shards(1, 4))
    (finding,) = pack.plan_check(Wish(tp=4), "spark1", 0, facts).findings
    assert finding.code == "PCK_SHORT_SHARD"
