"""Synthetic checkpoints with Engram tables, written without any library of the product."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def primes_from(start: int, heads: int, orders: int, layers: int) -> list[list[int]]:
    """Column sizes by trial division, drawn as the specification says."""
    seen: set[int] = set()
    tables = []
    for _ in range(layers):
        sizes = []
        for _ in range(orders):
            number = start - 1
            for _ in range(heads):
                number += 1
                while number in seen or any(number % d == 0 for d in range(2, number)):
                    number += 1
                seen.add(number)
                sizes.append(number)
        tables.append(sizes)
    return tables


@dataclass
class Checkpoint:
    """One checkpoint; change a field before ``write`` to make a broken one."""

    folder: Path
    vocab_size: int = 97
    heads: int = 4
    max_ngram: int = 4
    dim: int = 256
    layer_ids: tuple[int, ...] = (1, 14)
    index: bool = True
    names: str = "layers.{layer}.engram.embed"
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    """Overrides of config.json."""
    header: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Overrides of safetensors entries, by tensor name."""
    drop: tuple[str, ...] = ()
    """Tensor names left out of header and index."""
    weight_map: dict[str, str] = field(default_factory=dict)
    """Overrides of the index."""

    @property
    def sizes(self) -> list[list[int]]:
        return primes_from(self.vocab_size, self.heads, self.max_ngram - 1, len(self.layer_ids))

    def rows(self, layer: int) -> int:
        return sum(self.sizes[self.layer_ids.index(layer)])

    def table(self, layer: int) -> tuple[bytes, bytes]:
        """Weights and scales, random."""
        source = random.Random(f"{self.seed} {layer}")
        rows = self.rows(layer)
        return source.randbytes(rows * self.dim), source.randbytes(rows * self.dim // 32)

    def packed(self, layer: int) -> bytes:
        """The whole table as rows of weights and scales."""
        weights, scales = self.table(layer)
        dim, width = self.dim, self.dim // 32
        return b"".join(
            weights[row * dim : (row + 1) * dim] + scales[row * width : (row + 1) * width]
            for row in range(self.rows(layer))
        )

    def name(self, layer: int) -> str:
        return self.names.format(layer=layer, number=self.layer_ids.index(layer))

    def file(self, layer: int) -> str:
        if not self.index:
            return "model.safetensors"
        return f"model-{self.layer_ids.index(layer) + 1:05}-of-00002.safetensors"

    def write(self) -> Checkpoint:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = {
            "engram_layer_ids": list(self.layer_ids),
            "engram_num_embeddings": [sum(sizes) for sizes in self.sizes],
            "engram_max_ngram_size": self.max_ngram,
            "engram_n_heads": self.heads,
            "engram_head_dim": self.dim,
            "engram_vocab_size": self.vocab_size,
            "engram_pad_token_id": 2,
            "engram_compressed_vocab_size": 900,
        } | self.config
        (self.folder / "config.json").write_text(json.dumps(config))
        files: dict[str, dict[str, tuple[dict[str, Any], bytes]]] = {}
        for layer in self.layer_ids:
            weights, scales = self.table(layer)
            rows, stem = self.rows(layer), self.name(layer)
            tensors = files.setdefault(self.file(layer), {})
            # Something before it, so that nothing is aligned by luck.
            tensors[f"{stem}.other"] = ({"dtype": "U8", "shape": [777]}, bytes(777))
            tensors[f"{stem}.weight"] = (
                {"dtype": "F8_E4M3", "shape": [rows, self.dim]},
                weights,
            )
            tensors[f"{stem}.scale"] = (
                {"dtype": "F8_E8M0", "shape": [rows, self.dim // 32]},
                scales,
            )
        weight_map = {}
        for name, tensors in files.items():
            kept = {key: value for key, value in tensors.items() if key not in self.drop}
            weight_map |= dict.fromkeys(kept, name)
            self._write_file(self.folder / name, kept)
        if self.index:
            index = {"metadata": {}, "weight_map": weight_map | self.weight_map}
            (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return self

    def _write_file(self, path: Path, tensors: dict[str, tuple[dict[str, Any], bytes]]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name, (entry, content) in tensors.items():
            offsets = [len(data), len(data) + len(content)]
            header[name] = entry | {"data_offsets": offsets} | self.header.get(name, {})
            data += content
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
