"""A checkpoint with nothing but Engram tables: small, random, and of the real shape."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkserve.engram.layout import column_bounds, column_sizes
from sparkserve.engram.ownership import Layout, owned_ranges

DIM = 256
ROW_BYTES = 264
LAYERS = (1, 14)
HEADS, MAX_NGRAM = 8, 4


@dataclass(frozen=True)
class Tables:
    """What was written: the whole rows of every layer, weights then scales."""

    folder: Path
    bounds: dict[int, tuple[int, ...]]
    rows: dict[int, bytes]

    def shard(self, layer: int, layout: Layout, rank: int, tp: int) -> bytes:
        """The rows that one rank's file must hold after its header."""
        ranges = owned_ranges(self.bounds[layer], layout, rank, tp)
        rows = self.rows[layer]
        return b"".join(rows[start * ROW_BYTES : end * ROW_BYTES] for start, end in ranges)


def write(folder: Path, *, vocab_size: int = 100, seed: int = 1) -> Tables:
    """Write config.json, index and one safetensors file per layer.

    vocab_size: the 24 columns of each layer have about this many rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = column_sizes(len(LAYERS), MAX_NGRAM, HEADS, vocab_size)
    bounds = {n: column_bounds(size) for n, size in zip(LAYERS, sizes, strict=True)}
    (folder / "config.json").write_text(json.dumps(_config(vocab_size, bounds), indent=1))
    files: dict[str, str] = {}
    rows: dict[int, bytes] = {}
    for number, layer in enumerate(LAYERS, start=1):
        name = f"model-0000{number}-of-00002.safetensors"
        stem = f"layers.{layer}.engram.embed"
        files |= {f"{stem}.weight": name, f"{stem}.scale": name}
        rows[layer] = _write_table(folder / name, stem, bounds[layer][-1], f"{seed} {layer}")
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return Tables(folder, bounds, rows)


def _config(vocab_size: int, bounds: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v4",
        "engram_layer_ids": list(LAYERS),
        "engram_num_embeddings": [bounds[layer][-1] for layer in LAYERS],
        "engram_max_ngram_size": MAX_NGRAM,
        "engram_n_heads": HEADS,
        "engram_head_dim": DIM,
        "engram_vocab_size": vocab_size,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 50,
    }


def _write_table(path: Path, stem: str, rows: int, seed: str) -> bytes:
    source = random.Random(seed)
    weights, scales = source.randbytes(rows * DIM), source.randbytes(rows * (DIM // 32))
    # An odd offset, as other tensors before a table leave it.
    filler = 24
    head = {
        "layers.0.norm.weight": {"dtype": "U8", "shape": [filler], "data_offsets": [0, filler]},
        f"{stem}.weight": {
            "dtype": "F8_E4M3",
            "shape": [rows, DIM],
            "data_offsets": [filler, filler + len(weights)],
        },
        f"{stem}.scale": {
            "dtype": "F8_E8M0",
            "shape": [rows, DIM // 32],
            "data_offsets": [filler + len(weights), filler + len(weights) + len(scales)],
        },
    }
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\1" * filler + weights + scales)
    return b"".join(
        weights[row * DIM : (row + 1) * DIM] + scales[row * 8 : (row + 1) * 8]
        for row in range(rows)
    )
