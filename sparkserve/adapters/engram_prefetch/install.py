"""Find a model's Engram modules once it is loaded, and begin fetching when it has hashed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sparkserve.adapters.engram_prefetch import BOUND, HASH, META, Settings
from sparkserve.adapters.engram_prefetch.prefetch import Prefetcher
from sparkserve.adapters.engram_prefetch.side import CpuSide, CudaSide, Side
from sparkserve.adapters.engram_prefetch.tally import Tally
from sparkserve.adapters.install import Patch
from sparkserve.errors import EngineRefused
from sparkserve.model.engine_spec import EngineSpec

logger = logging.getLogger(__name__)


def install(spec: EngineSpec, settings: Settings) -> tuple[Patch, ...]:
    """The two wraps.

    Raises:
        EngineRefused: rows do not come from files.
    """
    if not any(adapter.name == "engram_rows" for adapter in spec.adapters):
        raise EngineRefused(META.name, "needs the adapter engram_rows, which is not installed")
    bound: WeakKeyDictionary[torch.nn.Module, Prefetcher] = WeakKeyDictionary()

    def around_hash(
        original: Callable[..., torch.Tensor],
        hasher: torch.nn.Module,
        input_ids: torch.Tensor,
        forward_batch: Any,
    ) -> torch.Tensor:
        hash_ids = original(hasher, input_ids, forward_batch)
        prefetcher = bound.get(hasher)
        if prefetcher is not None and not _ids_move_on(forward_batch):
            prefetcher.begin(hash_ids, forward_batch)
        return hash_ids

    def around_from_model(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        manager = original(*args, **named)
        # A draft model has no hasher, even where its configuration names Engram layers.
        if manager.engram_hasher is not None:
            prefetcher = bind(named["model"], manager.engram_hasher, settings)
            if prefetcher is not None:
                bound[manager.engram_hasher] = prefetcher
        return manager

    return (Patch(HASH, around_hash), Patch(BOUND, around_from_model))


def bind(model: torch.nn.Module, hasher: Any, settings: Settings) -> Prefetcher | None:
    """Make a prefetcher for a loaded model; None where its ids are gathered before the lookup.

    Raises:
        EngineRefused: the model's embeddings are not those of engram_rows, or nothing holds the
            hasher, so that the end of a pass could not be seen.
    """
    # Bound in the function only: module-level names of replaced classes would be rewritten.
    from sglang.srt.layers.engram import Engram
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if parallel.attn_dp_size > 1 or parallel.attn_cp_size > 1:
        logger.warning("sparkserve: engram_prefetch does nothing with attention DP or CP")
        return None
    engrams = [module for module in model.modules() if isinstance(module, Engram)]
    for engram in engrams:
        if not hasattr(engram.embed, "ahead"):
            kind = type(engram.embed).__qualname__
            raise EngineRefused(META.name, f"an embedding is a {kind}, not one of engram_rows")
    owner = next((m for m in model.modules() if any(c is hasher for c in m.children())), None)
    if owner is None:
        raise EngineRefused(META.name, "no module of the model holds the hasher")
    device = hasher.history.device
    side: Side = CudaSide(device, len(engrams)) if device.type == "cuda" else CpuSide()
    tallies = [Tally(e.layer_hash_index, device) for e in engrams] if settings.check else []
    prefetcher = Prefetcher([(e.layer_hash_index, e.embed) for e in engrams], side, tallies)
    _end_with(owner, prefetcher)
    logger.info(
        "sparkserve: ENGRAM_PREFETCH_READY layers %d, check %s", len(engrams), settings.check
    )
    return prefetcher


def _end_with(owner: torch.nn.Module, prefetcher: Prefetcher) -> None:
    """Let a pass end where its module's ``forward`` does.

    Put over the method and not registered as a hook: DeepSeek-V4 calls ``model.forward`` itself,
    past the hooks of ``__call__``.
    """
    forward = owner.forward

    @functools.wraps(forward)
    def forward_and_end(*args: Any, **named: Any) -> Any:
        try:
            return forward(*args, **named)
        finally:
            prefetcher.end()

    owner.forward = forward_and_end


def _ids_move_on(forward_batch: Any) -> bool:
    """Whether this pass's ids are used by no layer, or copied elsewhere before one uses them.

    Under breakable and piecewise prefill graphs the hash runs between two captured segments and
    the lookup inside one. Rows fetched here would fill the buffers that the captured lookup is
    about to fill.
    """
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import (
        is_in_breakable_cuda_graph,
    )
    from sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph import (
        is_in_tc_piecewise_cuda_graph,
    )

    return bool(
        forward_batch.forward_mode.is_idle()
        or is_in_breakable_cuda_graph()
        or is_in_tc_piecewise_cuda_graph()
    )
