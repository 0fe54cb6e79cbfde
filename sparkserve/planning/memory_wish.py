"""From a profile and what is known of the nodes to what the memory plan needs."""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.facts.model_config import ModelConfig
from sparkserve.facts.settings_text import options_of
from sparkserve.facts.wanted import whole_number
from sparkserve.model.profile import Profile
from sparkserve.planning.memory_model import ModelFigures, from_config, published
from sparkserve.planning.memory_types import MemoryWish, NodeMemory

_TUNED_BUFFER_BYTES = 1 << 20
"""``NCCL_BUFFSIZE`` of the published profiles; 4 MiB without it."""


def figures_of(
    profile: Profile, config: ModelConfig | None = None, weights_bytes: int | None = None
) -> ModelFigures | None:
    """The model's sizes: as published for the model that the profile names, else by its config.

    weights_bytes: of the safetensors files, without Engram tables. None = nothing is known.
    """
    model = profile.model
    known = published(model.repo, model.path, model.served_name)
    if known is not None:
        return known
    if config is not None:
        return from_config(config, ranks=profile.parallel.tp, weights_bytes=weights_bytes)
    return None


def unknown_figures(profile: Profile) -> ModelFigures:
    """A model of which nothing is known but its name."""
    return ModelFigures(
        name=profile.model.served_name,
        source="nothing is known",
        kv_note="no config.json at hand",
    )


def wish_of(profile: Profile, nodes: Sequence[NodeMemory], figures: ModelFigures) -> MemoryWish:
    """What a launch of this profile would ask of the memory of these nodes, rank 0 first."""
    context, engine = profile.context, profile.engine
    options = options_of(engine.extra_args)
    cache = profile.adapters.get("engram_rows", {}).get("cache_gib", 0)
    return MemoryWish(
        model=figures,
        nodes=tuple(nodes),
        engine=engine.kind,
        device=engine.device,
        ep=profile.parallel.ep,
        fraction=context.mem_fraction_static,
        kv_tokens=context.kv_tokens,
        context_tokens=context.length_tokens,
        chunk_tokens=context.chunked_prefill_tokens,
        max_running_requests=context.max_running_requests,
        speculation=profile.speculation.algorithm is not None,
        chunked_indexer="indexer_chunked" in profile.adapters,
        nccl_tuned=_nccl_is_tuned(profile),
        cuda_graphs=not any("disable-cuda-graph" in name for name in options),
        engram_cache_gib=float(cache) if isinstance(cache, int | float) else 0.0,
        engram_in_memory=bool(figures.engram_rows) and "engram_rows" not in profile.adapters,
    )


def _nccl_is_tuned(profile: Profile) -> bool:
    size = whole_number(profile.fabric.nccl.get("NCCL_BUFFSIZE"))
    return size is not None and 0 < size <= _TUNED_BUFFER_BYTES
