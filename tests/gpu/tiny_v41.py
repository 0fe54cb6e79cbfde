"""A DeepSeek-V4.1-Flash checkpoint of random numbers: real per-layer sizes, few layers.

usage: python tiny_v41.py FOLDER [--device cuda|cpu] [--narrow]

Two Engram layers over small tables, 16 experts, the byte tokenizer of the demo's tiny model;
2.1 GiB, 25 seconds on a GPU. Scales are powers of two chosen so that activations stay near 1.
``--narrow`` makes a toy of the same names for tests of this file: no engine serves it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

RATIOS = (0, 2, 1, 1)
"""Compression of each layer's KV: 0 = sliding window alone."""
KV_SOURCES, INDEX_SOURCES, CANDIDATE_SOURCE = (1, 2), (1, 2, 3), 2
ENGRAM_LAYERS = (1, 3)
_BLOCK = 32
_HYPER = 4


@dataclass(frozen=True)
class Size:
    """Widths of the model; the defaults are those of DeepSeek-V4.1-Flash."""

    hidden: int = 5120
    heads: int = 64
    head_dim: int = 512
    q_rank: int = 1280
    groups: int = 8
    o_rank: int = 1024
    expert: int = 2304
    experts: int = 16
    index_heads: int = 32
    index_dim: int = 128
    engram_vocab: int = 2000
    engram_heads: int = 8
    engram_dim: int = 256

    @property
    def engram_inputs(self) -> int:
        """Width of a token's concatenated rows: orders 2, 3 and 4."""
        return 3 * self.engram_heads * self.engram_dim


NARROW = replace(
    Size(), hidden=64, heads=4, head_dim=64, q_rank=64, groups=2, o_rank=32, expert=64,
    experts=2, index_heads=2, index_dim=64, engram_vocab=50, engram_heads=2, engram_dim=64,
)  # fmt: skip


def text_config(size: Size, vocab: int, compressed: int) -> dict[str, Any]:
    """``text_config`` of config.json."""
    from sparkserve.engram.layout import column_sizes

    columns = column_sizes(len(ENGRAM_LAYERS), 4, size.engram_heads, size.engram_vocab)
    return {
        "model_type": "deepseek_v41_text",
        "vocab_size": vocab,
        "hidden_size": size.hidden,
        "num_hidden_layers": len(RATIOS),
        "num_attention_heads": size.heads,
        "num_key_value_heads": 1,
        "head_dim": size.head_dim,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": size.head_dim - 64,
        "v_head_dim": size.head_dim,
        "kv_lora_rank": size.head_dim,
        "q_lora_rank": size.q_rank,
        "o_groups": size.groups,
        "o_lora_rank": size.o_rank,
        "moe_intermediate_size": size.expert,
        "intermediate_size": size.expert,
        "n_routed_experts": size.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
        "swiglu_limit": 10.0,
        "compress_ratios": list(RATIOS),
        "sliding_window": 128,
        "window_size": 128,
        "kv_source_layer_ids": list(KV_SOURCES),
        "index_source_layer_ids": list(INDEX_SOURCES),
        "candidate_source_layer_id": CANDIDATE_SOURCE,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "index_n_heads": size.index_heads,
        "index_head_dim": size.index_dim,
        "index_topk": 512,
        "hc_mult": _HYPER,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "hc_pre_from_prev_sublayer": True,
        "rms_norm_eps": 1e-20,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "q_head_norm": False,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "max_position_embeddings": 1048576,
        "num_nextn_predict_layers": 0,
        "num_hash_layers": 0,
        "engram_layer_ids": list(ENGRAM_LAYERS),
        "engram_num_embeddings": [sum(layer) for layer in columns],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": size.engram_vocab,
        "engram_n_heads": size.engram_heads,
        "engram_head_dim": size.engram_dim,
        "engram_pad_token_id": 261,
        "engram_compressed_vocab_size": compressed,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 261,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
    }


def config(text: dict[str, Any]) -> dict[str, Any]:
    """config.json around a ``text_config``."""
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "text_config": text,
        "tie_word_embeddings": False,
        "bos_token_id": text["bos_token_id"],
        "eos_token_id": text["eos_token_id"],
        "pad_token_id": text["pad_token_id"],
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [_BLOCK, _BLOCK],
        },
        "expert_dtype": "fp4",
    }


class Maker:
    """Random tensors on one device, by checkpoint name."""

    def __init__(self, size: Size, vocab: int, device: str) -> None:
        self.size, self.vocab, self.device = size, vocab, device
        self.source = torch.Generator(device=device).manual_seed(1)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.source, device=self.device)

    def projection(self, rows: int, columns: int) -> torch.Tensor:
        return (self.normal(rows, columns) / math.sqrt(columns)).to(torch.bfloat16)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.source, device=self.device)

    def powers(self, around: float, *shape: int) -> torch.Tensor:
        """e8m0 scales: half, once and twice the power of two nearest to ``around``."""
        exponents = self.integers(-1, 2, *shape) + round(math.log2(around))
        return (2.0 ** exponents.float()).to(torch.float8_e8m0fnu)

    def fp8(self, name: str, rows: int, columns: int) -> Iterator[tuple[str, torch.Tensor]]:
        """A linear in e4m3 with one scale per 32 x 32 block."""
        yield f"{name}.weight", (self.normal(rows, columns) * 32).to(torch.float8_e4m3fn)
        blocks = (rows // _BLOCK, columns // _BLOCK)
        yield f"{name}.scale", self.powers(1 / math.sqrt(columns) / 32, *blocks)

    def fp4(self, name: str, rows: int, columns: int) -> Iterator[tuple[str, torch.Tensor]]:
        """A linear in e2m1, two values a byte, with one scale per 32 inputs."""
        packed = self.integers(0, 256, rows, columns // 2).to(torch.uint8)
        yield f"{name}.weight", packed.view(torch.int8)
        yield f"{name}.scale", self.powers(0.35 / math.sqrt(columns), rows, columns // _BLOCK)

    def all(self) -> Iterator[tuple[str, torch.Tensor]]:
        hidden = self.size.hidden
        yield "embed.weight", self.normal(self.vocab, hidden).to(torch.bfloat16)
        yield "head.weight", (self.normal(self.vocab, hidden) * 0.03).to(torch.bfloat16)
        yield "norm.weight", self.ones(hidden)
        for layer in range(len(RATIOS)):
            at = f"layers.{layer}"
            yield from self.attention(f"{at}.attn", layer)
            yield from self.experts(f"{at}.ffn")
            yield f"{at}.attn_norm.weight", self.ones(hidden)
            yield f"{at}.ffn_norm.weight", self.ones(hidden)
            for part in ("attn", "ffn"):
                mixes = (2 + _HYPER) * _HYPER
                yield f"{at}.hc_{part}_fn", self.normal(mixes, _HYPER * hidden) * 0.01
                yield f"{at}.hc_{part}_base", self.normal(mixes) * 0.1
                yield f"{at}.hc_{part}_scale", torch.full((3,), 0.5)
            if layer in ENGRAM_LAYERS:
                yield from self.engram(f"{at}.engram", ENGRAM_LAYERS.index(layer))

    def attention(self, at: str, layer: int) -> Iterator[tuple[str, torch.Tensor]]:
        size = self.size
        inner = size.heads * size.head_dim
        yield from self.fp8(f"{at}.wq_a", size.q_rank, size.hidden)
        yield from self.fp8(f"{at}.wkv", size.head_dim, size.hidden)
        yield from self.fp8(f"{at}.wq_b", inner, size.q_rank)
        yield from self.fp8(f"{at}.wo_a", size.groups * size.o_rank, inner // size.groups)
        yield from self.fp8(f"{at}.wo_b", size.hidden, size.groups * size.o_rank)
        yield f"{at}.q_norm.weight", self.ones(size.q_rank)
        yield f"{at}.kv_norm.weight", self.ones(size.head_dim)
        yield f"{at}.attn_sink", self.normal(size.heads) * 0.5
        if layer in KV_SOURCES:
            yield f"{at}.compressor.wkv.weight", self.projection(size.head_dim, size.hidden)
            yield f"{at}.compressor.norm.weight", self.ones(size.head_dim)
            if RATIOS[layer] == 2:
                gate = self.projection(size.head_dim, size.hidden)
                yield f"{at}.compressor.wgate.weight", gate
        if layer in INDEX_SOURCES:
            queries = size.index_heads * size.index_dim
            yield from self.fp8(f"{at}.indexer.wq_b", queries, size.q_rank)
            mix = self.projection(size.index_heads, size.hidden)
            yield f"{at}.indexer.weights_proj.weight", mix
            if layer in KV_SOURCES:
                keys = self.projection(size.index_dim, size.head_dim)
                yield f"{at}.indexer.wk.weight", keys
                yield f"{at}.indexer.k_norm.weight", self.ones(size.index_dim)

    def experts(self, at: str) -> Iterator[tuple[str, torch.Tensor]]:
        size = self.size
        shapes = {
            "w1": (size.expert, size.hidden),
            "w3": (size.expert, size.hidden),
            "w2": (size.hidden, size.expert),
        }
        yield f"{at}.gate.weight", self.projection(size.experts, size.hidden)
        yield f"{at}.gate.bias", self.normal(size.experts) * 0.05
        for expert in range(size.experts):
            for part, shape in shapes.items():
                yield from self.fp4(f"{at}.experts.{expert}.{part}", *shape)
        for part, shape in shapes.items():
            yield from self.fp8(f"{at}.shared_experts.{part}", *shape)

    def engram(self, at: str, index: int) -> Iterator[tuple[str, torch.Tensor]]:
        size = self.size
        rows = text_config(size, 0, 0)["engram_num_embeddings"][index]
        weights = (self.normal(rows, size.engram_dim) * 64).clamp(-400, 400)
        yield f"{at}.embed.weight", weights.to(torch.float8_e4m3fn)
        yield f"{at}.embed.scale", self.powers(1 / 64, rows, size.engram_dim // _BLOCK)
        yield from self.fp8(f"{at}.wkv", (_HYPER + 1) * size.hidden, size.engram_inputs)
        yield f"{at}.q_weight", torch.ones(_HYPER, size.hidden, dtype=torch.bfloat16)
        yield f"{at}.k_weight", torch.ones(_HYPER, size.hidden, dtype=torch.bfloat16)

    @staticmethod
    def ones(width: int) -> torch.Tensor:
        return torch.ones(width, dtype=torch.bfloat16)


def write(folder: Path, size: Size, device: str) -> None:
    """Write config, tokenizer, weights and index."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    from sparkserve.engram.token_map import token_map
    from sparkserve.sim.build_demo.tiny import tiny_llama

    folder.mkdir(parents=True, exist_ok=True)
    tiny_llama().save_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    _, compressed = token_map(tokenizer)
    vocab = tokenizer.get_vocab_size()
    described = config(text_config(size, vocab, compressed))
    (folder / "config.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    tensors = {name: tensor.cpu().contiguous() for name, tensor in Maker(size, vocab, device).all()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": dict.fromkeys(tensors, "model.safetensors"),
    }
    text = json.dumps(index)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    print(f"{len(tensors)} tensors, {total / 2**30:.2f} GiB in {folder}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--narrow", action="store_true")
    asked = parser.parse_args()
    write(asked.folder, NARROW if asked.narrow else Size(), asked.device)
