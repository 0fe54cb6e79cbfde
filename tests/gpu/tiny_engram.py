"""A Llama behind SGLang's own Engram modules, in sizes that CUDA kernels take.

The demo's tiny model has heads of 32, for which SGLang's rotary kernel on CUDA is another one,
and three-grams, which its Engram hash kernel refuses: n-gram size and heads must be powers of two.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.ownership import Layout
from sparkserve.engram.shard import HEADER_BYTES, ShardName, write_shard
from sparkserve.sim.build_demo.build import Built, build
from sparkserve.sim.build_demo.noise import noise
from sparkserve.sim.build_demo.parts import Llama
from sparkserve.sim.build_demo.recipe import TINY, DemoRecipe, EngramRecipe
from sparkserve.sim.build_demo.tiny import tiny_llama

RECIPE: DemoRecipe = replace(
    TINY,
    name="tiny-engram-cuda",
    engram=EngramRecipe(vocab_size=5000, heads=2, strength=0.5, max_ngram=4),
    tp_sizes=(1,),
)
_HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM = 1024, 2048, 2, 16, 4, 64


def wide_llama() -> Llama:
    """The tiny Llama with its tokenizer, widened."""
    import torch

    narrow = tiny_llama()
    source = random.Random(20261130)
    vocab = narrow.config["vocab_size"]

    def weight(*shape: int) -> Any:
        return noise(source, shape, rms=0.03)

    def ones() -> Any:
        return torch.ones(_HIDDEN, dtype=torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": weight(vocab, _HIDDEN),
        "lm_head.weight": weight(vocab, _HIDDEN),
        "model.norm.weight": ones(),
    }
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.self_attn.q_proj.weight": weight(_HEADS * _HEAD_DIM, _HIDDEN),
            f"{at}.self_attn.k_proj.weight": weight(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{at}.self_attn.v_proj.weight": weight(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{at}.self_attn.o_proj.weight": weight(_HIDDEN, _HEADS * _HEAD_DIM),
            f"{at}.mlp.gate_proj.weight": weight(_INNER, _HIDDEN),
            f"{at}.mlp.up_proj.weight": weight(_INNER, _HIDDEN),
            f"{at}.mlp.down_proj.weight": weight(_HIDDEN, _INNER),
            f"{at}.input_layernorm.weight": ones(),
            f"{at}.post_attention_layernorm.weight": ones(),
        }
    config = narrow.config | {
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 8192,
    }
    return Llama(tensors, config, narrow.save_tokenizer)


def build_in(root: Path) -> Built:
    """Make ``root/checkpoints/tiny-engram-cuda`` and its packed rows in ``root/engram``."""
    return build(root, RECIPE, wide_llama, inputs={}, progress=print)


def reshard(whole: Path, checkpoint: Path, layout: Layout, tp: int, folder: Path) -> None:
    """Write every rank's shards in a layout, from the shards that one rank holds whole."""
    config = EngramConfig.from_config(json.loads((checkpoint / "config.json").read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    for layer in config.layer_ids:
        rows = (whole / ShardName(layer, 0, 1).file_name).read_bytes()[HEADER_BYTES:]
        for rank in range(tp):
            shard = config.shard(layer, layout, rank, tp)
            width = shard.row_bytes
            chunks = (rows[start * width : end * width] for start, end in shard.ranges)
            write_shard(folder / shard.file_name, shard.header, chunks)


if __name__ == "__main__":
    build_in(Path(sys.argv[1]))
