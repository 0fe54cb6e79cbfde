"""A Llama whose input embedding passes through SGLang's own Engram modules.

It drives SGLang's real hasher, request history, row lookup, tensor-parallel sum and gate on any
device, without the attention kernels of DeepSeek-V4.1, which no CPU can run. Everything else is
SGLang's Llama, so a real checkpoint keeps answering as it did as long as the gated rows are
small beside the embedding.

The configuration is Llama's with the ``engram_*`` fields of DeepSeek-V4.1 and ``hc_mult`` 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.engram import Engram, EngramHasher, EngramLayout
from sglang.srt.models.llama import LlamaForCausalLM, LlamaModel
from torch import nn

_PART = ".engrams."


class EngramLlamaModel(LlamaModel):  # type: ignore[misc]
    """The Llama stack behind a row of Engram modules."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config=quant_config, prefix=prefix)
        layout = EngramLayout.from_config(config)
        self.engrams = nn.ModuleList(
            Engram(config, layer, layout, None, f"{prefix}{_PART}{index}")
            for index, layer in enumerate(layout.layer_ids)
        )
        self.engram_hasher = EngramHasher.from_config(config, layout)
        # 0.5.23 wants the token ids for images, 0.5.21 knows no such argument.
        self._names_ids = "input_ids" in inspect.signature(Engram.forward).parameters

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Add the gated rows of every token to its embedding, then run the Llama stack."""
        hidden = self.embed_tokens(input_ids) if input_embeds is None else input_embeds
        hash_ids = self.engram_hasher(input_ids, forward_batch)
        named = {"input_ids": input_ids} if self._names_ids else {}
        for index, engram in enumerate(self.engrams):
            # One hyper-connection stream: [tokens, dim] -> [tokens, 1, dim].
            streams = hidden.unsqueeze(1).contiguous()
            hidden = engram(streams, hash_ids[:, index], forward_batch, **named).squeeze(1)
        return super().forward(input_ids, positions, forward_batch, hidden, pp_proxy_tensors)


class EngramLlamaForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """The served class."""

    def _init_model(self, config: Any, quant_config: Any = None, prefix: str = "") -> nn.Module:
        return EngramLlamaModel(config, quant_config=quant_config, prefix=prefix)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load Engram tensors by their own loaders and hand the rest to Llama's."""
        parameters = dict(self.named_parameters())
        rest: list[tuple[str, torch.Tensor]] = []
        for name, loaded in weights:
            if _PART not in name:
                rest.append((name, loaded))
                continue
            parameter = parameters[name]
            loader = getattr(parameter, "weight_loader", None)
            if loader is None:
                parameter.data.copy_(loaded)
            else:
                loader(parameter, loaded)
        super().load_weights(iter(rest))
        for index, engram in enumerate(self.model.engrams):
            engram.embed.finish_load(f"engram {index}")


EntryClass = EngramLlamaForCausalLM
