"""A tiny Llama with Engram tables of any size, whose rows follow from their numbers.

The tables have the columns, the n-grams and the row width of the released model; only the columns
are shorter. They are written piece by piece, so their size needs disk and no memory.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from sparkserve.engram.token_map import token_map
from sparkserve.sim.build_demo import tables
from sparkserve.sim.build_demo.recipe import EngramRecipe
from sparkserve.sim.build_demo.tiny import tiny_llama
from tools.rehearse_engram import CHUNK_ROWS, DIM, SCALES, WIDTH, rows_of

LAYERS, HEADS, MAX_NGRAM = (0, 1), 8, 4
TABLES = "model-00002-of-00002.safetensors"
_REST = "model-00001-of-00002.safetensors"


def recipe_of(gib: float) -> EngramRecipe:
    """Tables that together hold at least ``gib``, in the released model's columns."""
    columns = len(LAYERS) * (MAX_NGRAM - 1) * HEADS
    return EngramRecipe(
        vocab_size=math.ceil(gib * (1 << 30) / WIDTH / columns),
        heads=HEADS,
        strength=0.5,
        max_ngram=MAX_NGRAM,
        head_dim=DIM,
        layer_ids=LAYERS,
    )


def write_model(folder: Path, recipe: EngramRecipe) -> None:
    """The tiny Llama with these tables; each row's content follows from layer and number."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    folder.mkdir(parents=True)
    llama = tiny_llama()
    llama.save_tokenizer(folder)
    _, compressed = token_map(Tokenizer.from_file(str(folder / "tokenizer.json")))
    config = llama.config | recipe.config(
        pad_token_id=llama.config["pad_token_id"], compressed_vocab_size=compressed
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    # A table of one row, left out again: its projections do not depend on the rows.
    added = tables.tensors(
        recipe, [bytes(WIDTH) for _ in LAYERS], llama.tensors["model.embed_tokens.weight"]
    )
    rest = llama.tensors | {name: each for name, each in added.items() if ".embed." not in name}
    save_file(rest, str(folder / _REST), metadata={"format": "pt"})
    names = write_tables(folder / TABLES, config["engram_num_embeddings"])
    where = dict.fromkeys(rest, _REST) | dict.fromkeys(names, TABLES)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in folder.iterdir():
        path.chmod(0o644)


def write_tables(path: Path, rows_per_layer: list[int]) -> list[str]:
    """Write both tables piece by piece and return the tensors' names."""
    import numpy as np

    head: dict[str, Any] = {}
    end = 0
    for layer, rows in zip(LAYERS, rows_per_layer, strict=True):
        for part, kind, width in (("weight", "F8_E4M3", DIM), ("scale", "F8_E8M0", SCALES)):
            entry = {
                "dtype": kind,
                "shape": [rows, width],
                "data_offsets": [end, end := end + rows * width],
            }
            head[f"model.engrams.{layer}.embed.{part}"] = entry
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        base = file.tell()
        file.flush()
        for layer, rows in zip(LAYERS, rows_per_layer, strict=True):
            at = f"model.engrams.{layer}.embed"
            weight, scale = (
                base + head[f"{at}.{p}"]["data_offsets"][0] for p in ("weight", "scale")
            )
            for start in range(0, rows, CHUNK_ROWS):
                numbers = np.arange(start, min(start + CHUNK_ROWS, rows)) + (layer << 40)
                noise = rows_of(numbers)
                # e4m3 of 0.5 to 1.875, either sign, and e8m0 of 1/8 to 1/2: never zero, never NaN.
                weights = np.ascontiguousarray(noise[:, :DIM] & 0x8F | 0x30)
                scales = np.ascontiguousarray(noise[:, DIM:] % 3 + 124)
                os.pwrite(file.fileno(), weights, weight + start * DIM)
                os.pwrite(file.fileno(), scales, scale + start * SCALES)
    forget_pages(path)
    return list(head)


def forget_pages(path: Path) -> None:
    """Bring a file to the disk and out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
