"""The Engram probes run by a real shell against real files, as on a node with nothing of ours."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from sparkserve.engram.shard import ShardHeader
from sparkserve.facts import shards, storage
from sparkserve.facts.probe import Context
from sparkserve.model.facts import Unobserved
from tests.facts.test_scripts import asked

HEADER = ShardHeader(1, 0, 1000, 4000, 264).pack()


def engram(folder: Path, *, home: Path) -> shards.ShardFacts:
    facts = asked(shards.SHARDS, Context(root="~", engram_dir=str(folder)), home=home)
    assert isinstance(facts, shards.ShardFacts), facts
    return facts


def test_size_holes_header_and_manifest_of_shards_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "it's engram"
    folder.mkdir()
    whole = folder / "engram-l1-r0of4.bin"
    whole.write_bytes(HEADER + b"\7" * 264_000)
    sparse = folder / "engram-l14-r0of4.strided.bin"
    sparse.write_bytes(HEADER)
    os.truncate(sparse, 50_000_000)
    manifest = {"tp": 4, "layers": [{"a": 1}]}
    (folder / "manifest-r0of4.json").write_text(json.dumps(manifest, indent=1))
    (folder / "manifest-r1of4.json").write_text("[1]")
    (folder / "notes.txt").write_text("not ours")
    facts = engram(folder, home=tmp_path)
    assert (facts.path, facts.there) == (str(folder), True)
    first, second = facts.files
    assert (first.name, first.size_bytes, first.header) == (
        whole.name, 4096 + 264_000, HEADER.hex(),
    )  # fmt: skip
    assert first.allocated_bytes >= first.size_bytes
    assert (second.name, second.size_bytes) == (sparse.name, 50_000_000)
    assert second.allocated_bytes < 1_000_000
    assert facts.manifests == {
        "manifest-r0of4.json": manifest,
        "manifest-r1of4.json": None,
    }


def test_empty_and_absent_directories_differ(tmp_path: Path) -> None:
    assert not engram(tmp_path / "none", home=tmp_path).there
    (tmp_path / "empty").mkdir()
    assert engram(tmp_path / "empty", home=tmp_path).there


def test_relative_directory_lies_below_the_root(tmp_path: Path) -> None:
    facts = asked(shards.SHARDS, Context(root="~/s", engram_dir="v41"), home=tmp_path)
    assert facts.path == f"{tmp_path}/s/engram/v41"
    none = asked(shards.SHARDS, Context(root="~/s"), home=tmp_path)
    assert isinstance(none, Unobserved)


def test_free_space_is_asked_where_the_rows_will_lie(tmp_path: Path) -> None:
    context = Context(root="/nowhere", engram_dir=str(tmp_path / "not" / "yet"))
    space = asked(storage.ENGRAM_SPACE, context, home=tmp_path)
    assert (space.path, space.writable) == (str(tmp_path), True)
    assert space.free_bytes > 0


def test_checkpoint_is_whole_once_every_tables_file_is_there(tmp_path: Path) -> None:
    config = json.dumps({"engram_layer_ids": [1]}, indent=2)
    (tmp_path / "config.json").write_text(config)
    names = {
        "layers.1.engram.embed.weight": "model-00002.safetensors",
        "layers.1.engram.embed.scale": "model-00002.safetensors",
        "layers.1.attn.weight": "model-00001.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    context = Context(root="~", model_path=str(tmp_path))
    facts = asked(shards.SOURCE, context, home=tmp_path)
    assert [(t.tensor, t.file, t.size_bytes) for t in facts.tables] == [
        ("layers.1.engram.embed.weight", "model-00002.safetensors", None)
    ]
    assert facts.config == {"engram_layer_ids": [1]}
    assert facts.config_sha256 == hashlib.sha256(config.encode()).hexdigest()
    assert not facts.is_whole
    (tmp_path / "model-00002.safetensors").write_bytes(b"x" * 10)
    facts = asked(shards.SOURCE, context, home=tmp_path)
    assert facts.is_whole
    assert facts.tables[0].size_bytes == 10


def test_single_file_without_an_index_counts_where_the_model_has_tables(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    context = Context(root="~", model_path=str(tmp_path))
    for config, whole in (({"vocab_size": 9}, False), ({"engram_layer_ids": [0]}, True)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        facts = asked(shards.SOURCE, context, home=tmp_path)
        assert [(t.file, t.size_bytes) for t in facts.tables] == [("model.safetensors", 10)]
        assert (facts.is_whole, facts.index_sha256) == (whole, None)
