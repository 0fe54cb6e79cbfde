"""Checks of packed shards: the public failure cases, and silence where all is well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkserve.checks.check import judge
from sparkserve.checks.scene import Scene
from sparkserve.checks.shards import ENGRAM
from sparkserve.errors import ExitCode
from sparkserve.facts.shards import ShardFacts, ShardFile, SourceFacts
from sparkserve.model.facts import Unobserved
from sparkserve.model.finding import Finding
from sparkserve.model.layout import Layout
from tests import packed, scenes

CASES = Path(__file__).parent / "cases"


def findings(
    *nodes: ShardFacts | Unobserved,
    layout: Layout = "columns",
    source: SourceFacts | Unobserved | None = None,
    **sections: Any,
) -> tuple[Finding, ...]:
    """What the checks say of nodes that hold these shards, rank 0 first."""
    profile = scenes.profile(
        **{
            "model": {"path": "v41", "served_name": "v41", "revision": "dba1be0a"},
            "parallel": {"tp": len(nodes)},
            "engram": {"directory": "v41", "layout": layout},
        }
        | sections
    )
    checkpoint = packed.source() if source is None else source
    facts = {
        f"spark{n}": scenes.facts(n, engram_shards=held, engram_source=checkpoint)
        for n, held in enumerate(nodes, start=1)
    }
    return judge(ENGRAM, Scene(profile, scenes.cluster(len(nodes)), facts))


def failing(*nodes: ShardFacts | Unobserved, **options: Any) -> list[Finding]:
    return [finding for finding in findings(*nodes, **options) if finding.outcome == "fail"]


def fleet(tp: int, layout: Layout = "columns") -> list[ShardFacts]:
    return [packed.shards(rank, tp, layout) for rank in range(tp)]


@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5, 8])
def test_good_packs_pass_every_check(tp: int, layout: Layout) -> None:
    found = findings(*fleet(tp, layout), layout=layout)
    assert {finding.outcome for finding in found} == {"pass"}
    assert len(found) == 3 * tp


def test_no_engram_directory_means_no_check() -> None:
    assert findings(*fleet(2), engram={}) == ()


def stat_line(text: str, name: str) -> tuple[int, int]:
    """(size, allocated) of one file in the case's ``stat -c '%n %s %b'``."""
    for line in text.splitlines():
        path, size, blocks = line.split()
        if path.endswith(f"/{name}"):
            return int(size), int(blocks) * 512
    raise LookupError(name)


def test_case_b87_short_and_sparse_shards() -> None:
    """The case's files have a round number of rows; what they lack is taken over as it is."""
    folder = CASES / "B87-PCK_SHORT_SHARD"
    text = (folder / "01-node2-stat-c-n-s-b-engram.txt").read_text()
    manifest = json.loads((folder / "02-manifest-excerpt.txt").read_text())
    short, sparse = packed.identities(1, 4)
    files = []
    for shard, name in ((short, "L01.r1.bin"), (sparse, "L14.r1.bin")):
        size, allocated = stat_line(text, name)
        whole = manifest[name]["rows"] * manifest[name]["row_bytes"]
        ours = shard.header.file_bytes
        files.append(
            packed.shard_file(
                shard,
                size_bytes=ours - (whole - size),
                allocated_bytes=allocated if allocated < whole else ours + 4096,
            )
        )
    nodes = fleet(4)
    nodes[1] = nodes[1].model_copy(update={"files": tuple(files)})
    (finding,) = failing(*nodes)
    assert (finding.code, finding.node, finding.verdict) == ("PCK_SHORT_SHARD", "spark2", "FAIL")
    assert "engram-l1-r1of4.bin: 1 row short" in finding.observed
    assert "engram-l14-r1of4.bin: holes: 16,000,000,000 of 25,345,050,064" in finding.observed
    assert finding.fix == "sparkserve pack --profile tiny --replace"
    assert finding.exit_code == ExitCode.UNFIT


def test_case_b88_packed_for_three_ranks_and_four_are_wanted() -> None:
    folder = CASES / "B88-PCK_WORLD_OR_REVISION"
    told = json.loads((folder / "01-node3-engram-manifest-json.txt").read_text())
    wanted = dict(
        line.split(": ", 1) for line in (folder / "02-profile.txt").read_text().split("\n") if line
    )
    tp, layout = int(wanted["tp"]), wanted["layout"]
    nodes = fleet(tp, layout)
    nodes[2] = packed.shards(told["rank"], told["tp_size"], told["layout"])
    (finding,) = failing(*nodes, layout=layout)
    assert (finding.code, finding.node) == ("PCK_WORLD_OR_REVISION", "spark3")
    assert (finding.observed, finding.expected) == ("ranks: packed for tp 3", "tp 4")
    assert finding.fix == "sparkserve pack --profile tiny"


def test_case_b89_packed_contiguous_and_served_strided() -> None:
    folder = CASES / "B89-PCK_LAYOUT_FLAG"
    assert json.loads((folder / "01-manifest.txt").read_text()) == {"layout": "contiguous"}
    assert (folder / "02-runtime-env.txt").read_text().strip() == "ENGRAM_LAYOUT=strided"
    found = failing(*fleet(4, "columns"), layout="strided")
    assert {(f.code, f.observed, f.expected) for f in found} == {
        ("PCK_LAYOUT_FLAG", "layout: packed for columns or equal", "strided")
    }


@pytest.mark.parametrize("with_manifest", [True, False])
def test_the_two_layouts_with_one_file_name_are_told_apart_by_their_rows(
    with_manifest: bool,
) -> None:
    nodes = fleet(4, "equal")
    if not with_manifest:
        nodes = [node.model_copy(update={"manifests": {}}) for node in nodes]
    found = failing(*nodes, layout="columns")
    assert {finding.code for finding in found} == {"PCK_LAYOUT_FLAG"}
    assert "row_end is 96001542, but layout columns gives rank 0 of 4" in found[0].observed


def test_ranks_swapped_between_nodes_are_found_on_both() -> None:
    nodes = fleet(3)
    found = failing(nodes[1], nodes[0], nodes[2])
    assert [(f.node, f.code, f.observed) for f in found] == [
        ("spark1", "PCK_WORLD_OR_REVISION", "rank: packed for rank 1 of 3"),
        ("spark2", "PCK_WORLD_OR_REVISION", "rank: packed for rank 0 of 3"),
    ]


def test_file_renamed_to_another_rank_is_found_by_its_header() -> None:
    own, other = packed.identities(0, 2), packed.identities(1, 2)
    files = tuple(
        packed.shard_file(far, name=near.file_name) for near, far in zip(own, other, strict=True)
    )
    renamed = packed.shards(0, 2, files=files)
    found = failing(renamed, packed.shards(1, 2))
    assert {finding.node for finding in found} == {"spark1"}
    assert "row_start is 192001740" in str([finding.observed for finding in found])


@pytest.mark.parametrize("field", ["config_sha256", "index_sha256"])
def test_other_checkpoint_than_the_one_on_the_node_is_found(field: str) -> None:
    found = failing(packed.shards(0, 1), source=packed.source(**{field: "9" * 64}))
    assert [finding.code for finding in found] == ["PCK_WORLD_OR_REVISION"]


def test_half_a_checkpoint_is_no_witness_against_the_shards() -> None:
    half = packed.source(config_sha256="9" * 64, tables=())
    assert failing(packed.shards(0, 1), source=half) == []


def test_other_revision_than_the_profiles_is_found() -> None:
    model = {"path": "v41", "served_name": "v41", "revision": "0ther"}
    (finding,) = failing(packed.shards(0, 1), model=model)
    assert (finding.observed, finding.expected) == ("revision: dba1be0a", "0ther")


def test_nothing_packed_is_mended_by_packing_and_by_the_models_own_command() -> None:
    empty = ShardFacts(path=packed.FOLDER, there=False)
    (finding,) = failing(empty)
    assert finding.observed == (
        f"shards: no packed Engram rows in {packed.FOLDER}, which does not exist"
    )
    assert finding.fix == "sparkserve pack --profile tiny"
    own = {"path": "m", "served_name": "m", "obtain": "make demo"}
    assert failing(empty, model=own)[0].fix == "make demo"


def test_missing_layer_is_named() -> None:
    first, second = packed.identities(0, 1)
    alone = packed.shards(0, 1, files=(packed.shard_file(first),))
    (finding,) = failing(alone)
    assert finding.observed == f"{second.file_name}: missing"


def test_shards_without_a_manifest_are_of_unknown_origin_and_do_not_block() -> None:
    bare = packed.shards(0, 1, manifests={})
    found = findings(bare)
    assert [finding.outcome for finding in found] == ["pass", "unknown", "pass"]
    assert not any(finding.blocks for finding in found)


def test_compressing_file_system_is_no_hole_where_the_manifest_knows() -> None:
    small = tuple(
        packed.shard_file(shard, allocated_bytes=10_000_000) for shard in packed.identities(0, 1)
    )
    good = packed.manifest(0, 1)
    layers = tuple(
        layer.model_copy(update={"allocated_bytes": 10_000_000}) for layer in good.layers
    )
    known = packed.as_read(good.model_copy(update={"layers": layers}))
    held = packed.shards(0, 1, files=small, manifests={"manifest-r0of1.json": known})
    assert failing(held) == []
    assert [f.code for f in failing(packed.shards(0, 1, files=small))] == ["PCK_SHORT_SHARD"]


def test_unreadable_header_and_manifest_are_told_apart_from_missing_ones() -> None:
    shard = packed.identities(0, 1)[0]
    files = (packed.shard_file(shard, header="00" * 4096), *packed.shards(0, 1).files[1:])
    (finding,) = failing(packed.shards(0, 1, files=files))
    assert "magic 0x0000000000000000" in finding.observed
    broken = packed.shards(0, 1, manifests={"manifest-r0of1.json": None})
    (finding,) = failing(broken)
    assert finding.observed.startswith("manifest-r0of1.json: ")


def test_unknown_model_leaves_only_what_the_shards_say_of_themselves() -> None:
    unknown = Unobserved(reason="no checkpoint directory is named")
    assert failing(packed.shards(0, 1), source=unknown) == []
    first, second = packed.identities(0, 1)
    cut = packed.shard_file(first, size_bytes=first.header.file_bytes - 10)
    held = packed.shards(0, 1, files=(cut, packed.shard_file(second)))
    (finding,) = failing(held, source=unknown)
    assert "10 bytes short" in finding.observed


def test_what_was_not_observed_is_unknown() -> None:
    found = findings(Unobserved(reason="no answer within 15 s"))
    assert {(f.outcome, f.observed) for f in found} == {("unknown", "no answer within 15 s")}


def test_part_of_a_running_pack_is_not_taken_for_a_shard() -> None:
    part = ShardFile(name="engram-l1-r0of1.bin.partial", size_bytes=9, allocated_bytes=9)
    (finding,) = failing(packed.shards(0, 1, files=(part,)))
    assert "no packed Engram rows" in finding.observed
