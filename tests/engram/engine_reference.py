"""Asks a real SGLang, in a process of its own: ``python engine_reference.py REQUEST ANSWER``.

REQUEST and ANSWER are JSON files of named cases. The engine cannot be imported into the tests'
process: it needs the shim on PYTHONPATH and starts warnings and threads of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace


class Tokenizer:
    """What the engine asks of a Hugging Face tokenizer."""

    def __init__(self, path: str) -> None:
        from tokenizers import Tokenizer as Backend

        self.backend_tokenizer = Backend.from_file(path)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()


def layout_of(config: dict):
    from sglang.srt.layers.engram import EngramLayout

    return EngramLayout.from_config(SimpleNamespace(**config))


def forward_batch(step: dict):
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    mode = {
        "extend": ForwardMode.EXTEND,
        "decode": ForwardMode.DECODE,
        "verify": ForwardMode.TARGET_VERIFY,
        "idle": ForwardMode.IDLE,
    }[step["mode"]]
    lengths = torch.tensor(step["lengths"], dtype=torch.int32)
    predecessors = step["predecessors"]
    requests = max(1, len(step["slots"]))
    return SimpleNamespace(
        forward_mode=mode,
        positions=torch.tensor(step["positions"], dtype=torch.int64),
        req_pool_indices=torch.tensor(step["slots"], dtype=torch.int64),
        out_cache_loc=torch.tensor(step["cache_places"], dtype=torch.int64),
        extend_seq_lens=lengths,
        extend_start_loc=torch.cumsum(lengths, 0) - lengths,
        extend_seq_lens_cpu=step["lengths"],
        engram_history=None if predecessors is None else torch.tensor(predecessors),
        spec_info=SimpleNamespace(draft_token_num=len(step["tokens"]) // requests),
    )


def play(request: dict) -> list[dict]:
    import torch
    from sglang.srt.layers.engram import EngramHasher

    config = request["config"]
    hasher = EngramHasher(
        layout_of(config),
        Tokenizer(request["tokenizer"]),
        config["engram_pad_token_id"],
        config["engram_compressed_vocab_size"],
    )
    hasher.image_token_id = request["image_token_id"]
    hasher.init_history(request["slots"], "cpu")
    seen = []
    for step in request["steps"]:
        tokens = torch.tensor(step["tokens"], dtype=torch.int64)
        ids = hasher.forward(tokens, forward_batch(step))
        if step["mode"] == "verify":
            hasher.commit_after_verify(
                tokens.view(len(step["slots"]), -1),
                torch.tensor(step["slots"]),
                torch.tensor(step["accepted"]),
            )
        seen.append({"ids": ids.tolist(), "history": hasher.history[:-1].tolist()})
    return seen


def facts(request: dict) -> dict:
    from sglang.srt.layers import engram

    layout = layout_of(request["config"])
    size = request["config"]["engram_compressed_vocab_size"]
    token_map, count = engram.build_compressed_token_map(Tokenizer(request["tokenizer"]))
    multipliers = engram.compute_hash_multipliers(layout.layer_ids, layout.max_ngram_size, size)
    return {
        "primes": [[p for order in layer for p in order] for layer in layout.primes],
        "multipliers": multipliers.tolist(),
        "token_map": token_map,
        "compressed": count,
        # 0.5.21 splits rows without regard to columns and has no bounds.
        "bounds": [layout.column_bounds(index) for index in range(len(layout.layer_ids))]
        if hasattr(layout, "column_bounds")
        else None,
        "ranges": {
            tp: [list(engram.shard_range(*_share(layout, tp, rank))) for rank in range(tp)]
            for tp in request["tp"]
        }
        if hasattr(engram, "shard_range")
        else None,
    }


def _share(layout, tp: int, rank: int) -> tuple:
    bounds = layout.column_bounds(0)
    return bounds[-1], bounds, rank, tp


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    answers = {name: {"facts": facts(case), "steps": play(case)} for name, case in asked.items()}
    Path(sys.argv[2]).write_text(json.dumps(answers))
