"""The released model's tables as facts: shards, manifests and the checkpoint they come from."""

from __future__ import annotations

import json
from typing import Any

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.manifest import manifest_name, wanted_layer
from sparkserve.engram.shard import ShardIdentity
from sparkserve.facts.shards import ShardFacts, ShardFile, SourceFacts, TableFile
from sparkserve.model.engram_manifest import EngramManifest, ManifestLayer
from sparkserve.model.layout import Layout

CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_vocab_size": 16000000,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99092,
}
"""The Engram fields of DeepSeek-V4.1-Flash."""
MODEL = EngramConfig.from_config(CONFIG)
CONFIG_SHA256, INDEX_SHA256 = "0" * 64, "1" * 64
FOLDER = "/srv/sparkserve/engram/v41"


def source(**changes: Any) -> SourceFacts:
    """A checkpoint directory that holds both tables."""
    values: dict[str, Any] = {
        "path": "/srv/sparkserve/checkpoints/v41",
        "there": True,
        "config": CONFIG,
        "config_sha256": CONFIG_SHA256,
        "index_sha256": INDEX_SHA256,
        "tables": tuple(
            TableFile(
                tensor=f"layers.{layer}.engram.embed.weight",
                file=f"model-000{number}-of-00048.safetensors",
                size_bytes=101_377_629_000,
            )
            for layer, number in ((1, 47), (14, 48))
        ),
    }
    return SourceFacts.model_validate(values | changes)


def identities(rank: int, tp: int, layout: Layout = "columns") -> tuple[ShardIdentity, ...]:
    """The rank's shards of both layers."""
    return tuple(MODEL.shard(layer, layout, rank, tp) for layer in MODEL.layer_ids)


def manifest(rank: int, tp: int, layout: Layout = "columns", **changes: Any) -> EngramManifest:
    """What a good pack of the rank leaves behind."""
    made = EngramManifest(
        tool_version="0.1.0",
        rank=rank,
        tp=tp,
        layout=layout,
        revision="dba1be0a",
        checkpoint_config_sha256=CONFIG_SHA256,
        checkpoint_index_sha256=INDEX_SHA256,
        layers=tuple(_layer(shard) for shard in identities(rank, tp, layout)),
    )
    return made.model_copy(update=changes)


def _layer(shard: ShardIdentity) -> ManifestLayer:
    wanted = wanted_layer(shard)
    size_bytes = shard.header.file_bytes
    return ManifestLayer(
        layer=shard.layer,
        row_start=wanted.ranges[0].start,
        row_end=wanted.ranges[-1].end,
        ranges=wanted.ranges,
        total_rows=shard.total_rows,
        row_bytes=shard.row_bytes,
        bounds_sha256=str(wanted.bounds_sha256),
        packed_file=shard.file_name,
        bytes=size_bytes,
        allocated_bytes=size_bytes + 4096,
        sha256="2" * 64,
        checksum_span_bytes=64 << 20,
        checksums=("3" * 16,) * -(-size_bytes // (64 << 20)),
        verified="sample",
        sampled_rows=1037,
        sample_seed=1000,
        source_shard="model-00047-of-00048.safetensors",
        source_bytes=101_377_629_000,
        source_header_sha256="4" * 64,
        source_weight_offset=664,
        source_scale_offset=98305579672,
    )


def shard_file(shard: ShardIdentity, **changes: Any) -> ShardFile:
    """A whole shard as a node shows it."""
    size_bytes = shard.header.file_bytes
    values = {
        "name": shard.file_name,
        "size_bytes": size_bytes,
        "allocated_bytes": size_bytes + 8192,
        "header": shard.header.pack().hex(),
    }
    return ShardFile.model_validate(values | changes)


def shards(rank: int, tp: int, layout: Layout = "columns", **changes: Any) -> ShardFacts:
    """An Engram directory with a good pack of one rank."""
    found = manifest(rank, tp, layout)
    values: dict[str, Any] = {
        "path": FOLDER,
        "there": True,
        "files": tuple(shard_file(shard) for shard in identities(rank, tp, layout)),
        "manifests": {manifest_name(rank, tp, layout): as_read(found)},
    }
    return ShardFacts.model_validate(values | changes)


def as_read(found: EngramManifest) -> dict[str, Any]:
    """A manifest as a probe brings it."""
    value: dict[str, Any] = json.loads(found.model_dump_json())
    return value
