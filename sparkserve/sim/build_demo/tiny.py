"""A Llama of random weights with a byte-level tokenizer: real mechanics, meaningless text."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from sparkserve.sim.build_demo.noise import noise
from sparkserve.sim.build_demo.parts import Llama

_SPECIALS = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|pad|>")
_BYTES = 256
_BOS, _EOS, _PAD = _BYTES, _BYTES + 1, _BYTES + 5
_TEMPLATE = (
    "<|bos|>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM = 128, 256, 2, 4, 2, 32


def tiny_llama() -> Llama:
    """Two layers, four heads, two key-value heads, so that it splits over two ranks."""
    source = random.Random(20240607)
    vocab = _BYTES + len(_SPECIALS)

    def weight(*shape: int) -> Any:
        return noise(source, shape, rms=0.06)

    import torch

    tensors = {
        "model.embed_tokens.weight": weight(vocab, _HIDDEN),
        "lm_head.weight": weight(vocab, _HIDDEN),
        "model.norm.weight": torch.ones(_HIDDEN, dtype=torch.bfloat16),
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
            f"{at}.input_layernorm.weight": torch.ones(_HIDDEN, dtype=torch.bfloat16),
            f"{at}.post_attention_layernorm.weight": torch.ones(_HIDDEN, dtype=torch.bfloat16),
        }
    return Llama(tensors, _config(vocab), _save_tokenizer)


def _config(vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": vocab,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
        "pad_token_id": _PAD,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    text = json.dumps(described, indent=1)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
