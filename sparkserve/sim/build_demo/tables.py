"""Engram tables for a Llama: checkpoint tensors, and the same rows packed per rank."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from sparkserve.engram.local_source import LocalFolder
from sparkserve.engram.pack import PackRun
from sparkserve.engram.pack_lock import lock_path
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.shard import row_bytes_of
from sparkserve.model.pack import PackJob
from sparkserve.sim.build_demo.noise import noise, random_rows
from sparkserve.sim.build_demo.recipe import EngramRecipe

_ROW_RMS = 0.41
"""Root mean square of a value of ``random_rows``, near enough to set the strength by."""
_MEAN_GATE = 0.5
_CHUNK_MIB = 8
"""Chunks of the packer: the tables are small, and so may be its memory."""


def tables(recipe: EngramRecipe, seed: int) -> list[bytes]:
    """The packed rows of every layer's whole table."""
    return [
        random_rows(random.Random(f"{seed} rows {layer}"), bounds[-1], recipe.head_dim)
        for layer, bounds in zip(recipe.layer_ids, recipe.bounds, strict=True)
    ]


def tensors(recipe: EngramRecipe, packed: list[bytes], embedding: Any) -> dict[str, Any]:
    """Checkpoint tensors of the Engram modules under the names SGLang gives them.

    embedding: the token embedding, [vocab, hidden]; its size sets that of the contribution.
    """
    import torch

    hidden = embedding.shape[1]
    inputs = recipe.columns * recipe.head_dim
    wanted_rms = recipe.strength * embedding.float().square().mean().sqrt().item()
    weight_rms = wanted_rms / (_MEAN_GATE * _ROW_RMS * math.sqrt(inputs))
    out: dict[str, Any] = {}
    for index, rows in enumerate(packed):
        at = f"model.engrams.{index}"
        table = torch.frombuffer(bytearray(rows), dtype=torch.uint8)
        table = table.view(-1, row_bytes_of(recipe.head_dim))
        weights = table[:, : recipe.head_dim].contiguous()
        scales = table[:, recipe.head_dim :].contiguous()
        out[f"{at}.embed.weight"] = weights.view(torch.float8_e4m3fn)
        out[f"{at}.embed.scale"] = scales.view(torch.float8_e8m0fnu)
        # The first half makes the keys of the gate, the second half the values.
        source = random.Random(f"projection {index}")
        out[f"{at}.wkv.weight"] = noise(source, (2 * hidden, inputs), rms=weight_rms)
        out[f"{at}.q_weight"] = torch.ones(1, hidden)
        out[f"{at}.k_weight"] = torch.ones(1, hidden)
    return out


def pack(checkpoint: Path, folder: Path, tp: int) -> None:
    """Pack a written checkpoint's tables for one rank count (layout columns).

    Raises:
        PackError: no space, or the checkpoint is not what it should be.
    """
    for rank in range(tp):
        job = PackJob(
            source=str(checkpoint),
            out=str(folder),
            tp=tp,
            rank=rank,
            reserve_gib=0,
            chunk_mib=_CHUNK_MIB,
        )
        PackRun(job, LocalFolder(checkpoint), Reporter(lambda _: None)).run()
        # Its note of time and process would make every build another one.
        lock_path(folder, rank, tp, job.layout).unlink()
