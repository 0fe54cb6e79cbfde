"""A manifest is taken for what is wanted only where every word of it fits."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from sparkserve.engram.manifest import (
    bounds_sha256,
    found_files,
    judge_manifest,
    manifest_name,
    parse_manifest,
    read_manifest,
)
from sparkserve.errors import ShardError
from sparkserve.model.engram_manifest import (
    EngramManifest,
    FoundFile,
    ManifestLayer,
    RowSpan,
    WantedLayer,
    WantedShards,
)
from sparkserve.model.pack import PackCode
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import job_of, pack

ROWS, WIDTH = 96_000_000, 264
BYTES = 4096 + ROWS * WIDTH
SPAN = 64 << 20


def layer(number: int, **fields: Any) -> ManifestLayer:
    """One shard of rank 1 of 4, of a table of round numbers."""
    base = {
        "layer": number,
        "row_start": ROWS,
        "row_end": 2 * ROWS,
        "ranges": [[ROWS, 2 * ROWS]],
        "total_rows": 4 * ROWS,
        "row_bytes": WIDTH,
        "bounds_sha256": bounds_sha256([0, 4 * ROWS]),
        "packed_file": f"engram-l{number}-r1of4.bin",
        "bytes": BYTES,
        "allocated_bytes": BYTES + 1000,
        "sha256": "a" * 64,
        "checksum_span_bytes": SPAN,
        "checksums": ["b" * 16] * -(-BYTES // SPAN),
        "verified": "sample",
        "sampled_rows": 1037,
        "sample_seed": number * 1000 + 1,
        "source_shard": "model-00047-of-00048.safetensors",
        "source_bytes": 10**11,
        "source_header_sha256": "c" * 64,
        "source_weight_offset": 664,
        "source_scale_offset": 98305579672,
    }
    return ManifestLayer.model_validate(base | fields)


def manifest(**fields: Any) -> EngramManifest:
    base = {
        "tool_version": "0.1.0",
        "rank": 1,
        "tp": 4,
        "layout": "columns",
        "revision": "dba1be0a",
        "checkpoint_config_sha256": "d" * 64,
        "checkpoint_index_sha256": "e" * 64,
        "layers": (layer(1), layer(14)),
    }
    return EngramManifest.model_validate(base | fields)


def wanted(**fields: Any) -> WantedShards:
    layers = tuple(
        WantedLayer(
            layer=number,
            ranges=(RowSpan(ROWS, 2 * ROWS),),
            total_rows=4 * ROWS,
            row_bytes=WIDTH,
            bounds_sha256=bounds_sha256([0, 4 * ROWS]),
        )
        for number in (1, 14)
    )
    base = {
        "rank": 1,
        "tp": 4,
        "layout": "columns",
        "layers": layers,
        "revision": "dba1be0a",
        "config_sha256": "d" * 64,
        "index_sha256": "e" * 64,
        "files": {
            f"engram-l{number}-r1of4.bin": FoundFile(size_bytes=BYTES, allocated_bytes=BYTES)
            for number in (1, 14)
        },
    }
    return WantedShards.model_validate(base | fields)


def test_what_was_wanted_has_no_differences() -> None:
    assert judge_manifest(manifest(), wanted()) == ()


def test_no_manifest_is_a_difference() -> None:
    (only,) = judge_manifest(None, wanted())
    assert only.code is PackCode.MANIFEST
    assert only.expected == "manifest-r1of4.json"


def test_case_b87_short_and_sparse_shards() -> None:
    # From the case: L01 is one row short, L14 has the right size but only 31,250,000 blocks.
    files = {
        "engram-l1-r1of4.bin": FoundFile(
            size_bytes=BYTES - WIDTH, allocated_bytes=49_500_000 * 512
        ),
        "engram-l14-r1of4.bin": FoundFile(size_bytes=BYTES, allocated_bytes=31_250_000 * 512),
    }
    short, sparse = judge_manifest(manifest(), wanted(files=files))
    assert (short.code, sparse.code) == (PackCode.SHORT_SHARD, PackCode.SHORT_SHARD)
    assert short.what == "engram-l1-r1of4.bin"
    assert short.observed == f"{BYTES - WIDTH} bytes"
    assert sparse.what == "engram-l14-r1of4.bin: bytes on disk"
    assert sparse.observed == "16000000000 (holes)"


def test_a_compressing_file_system_may_allocate_less_than_the_size() -> None:
    layers = (layer(1, allocated_bytes=BYTES // 2),)
    files = {"engram-l1-r1of4.bin": FoundFile(size_bytes=BYTES, allocated_bytes=BYTES // 2)}
    want = wanted(files=files, layers=wanted().layers[:1])
    assert judge_manifest(manifest(layers=layers), want) == ()


def test_case_b88_another_number_of_ranks() -> None:
    (only,) = judge_manifest(manifest(tp=3), wanted(files=None))
    assert only.code is PackCode.WORLD_OR_REVISION
    assert (only.what, only.observed, only.expected) == ("ranks", "3", "4")
    assert str(only) == "ranks: 3, expected 4"


def test_case_b89_another_layout() -> None:
    (only,) = judge_manifest(manifest(), wanted(layout="strided", files=None))
    assert only.code is PackCode.LAYOUT_FLAG
    assert (only.observed, only.expected) == ("columns", "strided")


@pytest.mark.parametrize(
    ("changed", "code", "what"),
    [
        ({"rank": 2}, PackCode.WORLD_OR_REVISION, "rank"),
        ({"revision": "other"}, PackCode.WORLD_OR_REVISION, "revision"),
        ({"config_sha256": "0" * 64}, PackCode.IDENTITY, "config.json"),
        ({"index_sha256": "0" * 64}, PackCode.IDENTITY, "index"),
        ({"files": {}}, PackCode.SHORT_SHARD, "engram-l1-r1of4.bin"),
    ],
)
def test_every_difference_is_named(changed: dict[str, Any], code: PackCode, what: str) -> None:
    first = judge_manifest(manifest(), wanted(**changed))[0]
    assert (first.code, first.what) == (code, what)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"total_rows": 5}, "layer 1: rows of the table"),
        ({"row_bytes": 66}, "layer 1: bytes per row"),
        ({"bounds_sha256": "0" * 64}, "layer 1: column bounds"),
        ({"ranges": ((0, ROWS),)}, "layer 1: rows"),
        ({"layer": 2}, "layers"),
    ],
)
def test_every_difference_of_a_table_is_named(changed: dict[str, Any], what: str) -> None:
    first = wanted().layers[0].model_copy(update=changed)
    found = judge_manifest(manifest(), wanted(layers=(first,), files=None))
    assert [(each.code, each.what) for each in found] == [(PackCode.TABLE, what)]


def test_all_differences_are_told_at_once() -> None:
    found = judge_manifest(
        manifest(tp=8, layout="equal", revision="x"), wanted(config_sha256="0" * 64)
    )
    assert [each.what for each in found] == ["ranks", "layout", "revision", "config.json"]


def test_what_was_not_asked_is_not_judged() -> None:
    want = WantedShards(rank=1, tp=4, layout="columns")
    assert judge_manifest(manifest(revision=None), want) == ()
    assert judge_manifest(manifest(revision=None), wanted()) == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 4}, "rank 4 of 4"),
        ({"layers": ()}, "not ascending"),
        ({"layers": (layer(14), layer(1))}, "not ascending"),
        ({"layers": (layer(1), layer(1))}, "not ascending"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_none(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        manifest(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"bytes": BYTES - 1},
        {"row_start": 0},
        {"row_end": 0},
        {"ranges": [[2 * ROWS, ROWS]]},
        {"total_rows": ROWS},
        {"checksums": ["b" * 16]},
        {"packed_file": "../engram-l1-r1of4.bin"},
        {"sha256": "A" * 64},
        {"checksum_span_bytes": 0},
        {"checksum_span_bytes": 1000},
    ],
)
def test_a_layer_that_contradicts_itself_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"layer|sha256|checksum"):
        layer(1, **fields)


def test_names_of_manifests() -> None:
    assert manifest_name(1, 4, "columns") == manifest_name(1, 4, "equal") == "manifest-r1of4.json"
    assert manifest_name(1, 4, "strided") == "manifest-r1of4.strided.json"


def test_a_folder_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path, 0, 1, "columns") is None
    (tmp_path / "manifest-r0of1.json").mkdir()
    with pytest.raises(ShardError, match="cannot be read"):
        read_manifest(tmp_path, 0, 1, "columns")


# --- fuzz -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifest")
    checkpoint = Checkpoint(folder / "in").write()
    pack(job_of(checkpoint, folder / "out", tp=3, rank=1, layout="strided"))
    return folder / "out" / "manifest-r1of3.strided.json"


def mutate_bytes(source: random.Random, text: bytes) -> bytes:
    data = bytearray(text)
    for _ in range(source.choice([1, 1, 1, 2, 5])):
        at = source.randrange(len(data))
        kind = source.randrange(4)
        if kind == 0:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            data[at] = source.choice(b'0123456789abcdef"{}[],:')
        elif kind == 2:
            del data[at : at + source.randrange(1, 40)]
        else:
            data[at:at] = data[max(0, at - 20) : at]
    return bytes(data)


def mutate_json(source: random.Random, text: bytes) -> bytes:
    data = json.loads(text)
    node: Any = data
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = source.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and source.random() < 0.8:
            node = node[key]
            continue
        break
    values = [None, True, -1, 0, 1, 2**63, 10**30, 1.5, "", "x", [], {}, "0" * 64, "NaN"]
    if source.random() < 0.3:
        del node[key]
    elif source.random() < 0.3 and isinstance(node[key], int):
        node[key] += source.choice([-1, 1, 264, -264])
    else:
        node[key] = copy.deepcopy(source.choice(values))
    return json.dumps(data).encode()


def test_a_thousand_damaged_manifests_are_refused_or_judged_different(real: Path) -> None:
    """No crash; and what is accepted and judged right means what the original meant."""
    text = real.read_bytes()
    original = parse_manifest(text, "m")
    want = WantedShards(
        rank=1,
        tp=3,
        layout="strided",
        layers=tuple(
            WantedLayer(
                layer=each.layer,
                ranges=each.ranges,
                total_rows=each.total_rows,
                row_bytes=each.row_bytes,
                bounds_sha256=each.bounds_sha256,
            )
            for each in original.layers
        ),
        config_sha256=original.checkpoint_config_sha256,
        index_sha256=original.checkpoint_index_sha256,
        files=found_files(real.parent, original),
    )
    assert judge_manifest(original, want) == ()
    outcomes = {"refused": 0, "different": 0, "same": 0}
    for number in range(1000):
        source = random.Random(f"manifest {number}")
        damaged = (mutate_bytes if number % 2 else mutate_json)(source, text)
        try:
            found = parse_manifest(damaged, "m")
        except ShardError:
            outcomes["refused"] += 1
            continue
        if judge_manifest(found, want):
            outcomes["different"] += 1
            continue
        outcomes["same"] += 1
        assert where_rows_are(found) == where_rows_are(original)
    assert sum(outcomes.values()) == 1000
    assert outcomes["refused"] > 500
    assert outcomes["different"] > 20


def where_rows_are(manifest: EngramManifest) -> list[tuple[object, ...]]:
    """All that decides which bytes are served as which row."""
    return [
        (manifest.rank, manifest.tp, manifest.layout, each.layer, each.ranges, each.row_bytes,
         each.total_rows, each.packed_file, each.bytes)
        for each in manifest.layers
    ]  # fmt: skip


def test_the_size_on_disk_is_what_stat_says(real: Path) -> None:
    original = parse_manifest(real.read_bytes(), "m")
    found = found_files(real.parent, original)
    for name, file in found.items():
        status = (real.parent / name).stat()
        assert (file.size_bytes, file.allocated_bytes) == (status.st_size, status.st_blocks * 512)
    assert set(found) == {each.packed_file for each in original.layers}


@pytest.mark.parametrize(
    "name",
    ["other.bin", "engram-l1-r0of4.bin", "engram-l14-r1of4.bin", "engram-l1-r1of4.strided.bin"],
)
def test_a_manifest_cannot_have_another_file_judged_than_the_one_that_is_served(name: str) -> None:
    text = manifest(layers=(layer(1, packed_file=name),)).model_dump_json()
    with pytest.raises(ShardError, match=r"lies in .*, expected engram-l1-r1of4\.bin"):
        parse_manifest(text, "manifest-r1of4.json")
