"""The class that takes EngramEmbedding's place.

No name of the engine's module may be bound at module level: after a replacement SGLang rewrites
every module-level name that held the original, so such a base class would become its own child.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import torch

from sparkserve.adapters.engram_rows import META
from sparkserve.adapters.engram_rows.cuda import CudaLookup
from sparkserve.adapters.engram_rows.lookup import Ahead, CpuLookup, RowLookup
from sparkserve.adapters.engram_rows.shards import OpenLayer, RankShards
from sparkserve.adapters.engram_rows.stats import StatsFile, store_figures
from sparkserve.engram.shard import WEIGHTS_PER_SCALE
from sparkserve.errors import EngineRefused

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """What the engine asked for when it made an embedding."""

    layer_id: int
    rows: int
    dim: int
    column_bounds: tuple[int, ...] | None
    """None: SGLang 0.5.21 names none."""


@dataclass(frozen=True)
class Service:
    """What all layers of one process have in common."""

    shards: RankShards
    stats: StatsFile
    manifest_sha256: str | None
    """Digest of the manifest that describes the shards; None = there is none."""


def embedding_class(base: type, shards: RankShards, manifest_sha256: str | None) -> type:
    """A subclass of the engine's EngramEmbedding whose rows lie in this rank's shards."""
    stats = StatsFile(shards.spec.run_dir, shards.spec.rank, shards.settings.stats_interval_s)
    service = Service(shards, stats, manifest_sha256)
    return type("ShardEngramEmbedding", (ShardRows, base), {"service": service})


class ShardRows:
    """What differs from the engine's EngramEmbedding, to be put before it.

    Only construction, loading and ``_owned_rows`` differ: zero rows for what other ranks own,
    the sum over ranks and every parallel path around the lookup stay the engine's own.
    """

    service: Service

    def __init__(
        self,
        num_embeddings: int,
        dim: int,
        layer_id: int,
        column_bounds: tuple[int, ...] | None = None,
    ) -> None:
        # Not the engine's own constructor: it would allocate the whole share in memory.
        torch.nn.Module.__init__(self)
        shards = self.service.shards
        self.tp_size = _check_place(shards)
        _check_table(shards, Table(layer_id, num_embeddings, dim, column_bounds))
        self._layer = shards.open(layer_id)
        ranges = self._layer.identity.ranges
        self.row_start = ranges[0].start if ranges else 0
        self.rows = sum(each.rows for each in ranges)
        self.dim = dim
        self.peer = None
        self.host_table = None
        self.staged_by_scheduler = False
        self._sort_host_reads = False
        self._lookups: dict[torch.device, RowLookup] = {}
        self._forward_batch: Any = None
        self.ahead: Ahead | None = None
        """Where rows are fetched before they are needed."""
        self.weight = _placeholder((num_embeddings, dim), torch.float8_e4m3fn)
        scales = dim // WEIGHTS_PER_SCALE
        self.scale = _placeholder((num_embeddings, scales), torch.float8_e8m0fnu)
        self.service.stats.add(self.figures)

    def finish_load(self, label: str) -> None:
        """Nothing was loaded into memory; say what will be served."""
        line = json.dumps(_ready(self._layer, self.service.manifest_sha256))
        logger.info("sparkserve: ENGRAM_ROWS_READY %s", line)

    def figures(self) -> dict[str, Any]:
        """What the statistics file says about this layer."""
        figures = store_figures(self._layer.identity.layer, self._layer.store.stats())
        return figures | (self.ahead.counters() if self.ahead else {})

    def lookup(self, device: torch.device) -> RowLookup:
        """How rows reach a device."""
        found = self._lookups.get(device)
        if found is None:
            if device.type == "cuda":
                found = CudaLookup(self._layer, self.dim, self.service.shards.settings, device)
            else:
                found = CpuLookup(self._layer, self.dim)
            self._lookups[device] = found
        return found

    def forward(
        self, indices: torch.Tensor, forward_batch: Any = None, **named: Any
    ) -> torch.Tensor:
        """The engine's own."""
        # _owned_rows is not told which forward it serves, and rows that were asked for ahead
        # belong to exactly one.
        self._forward_batch = forward_batch
        try:
            rows: torch.Tensor = super().forward(indices, forward_batch, **named)  # type: ignore[misc]
            return rows
        finally:
            self._forward_batch = None

    def _owned_rows(self, indices: torch.Tensor) -> torch.Tensor:
        if self.ahead is not None and self._forward_batch is not None:
            rows = self.ahead.take(indices, self._forward_batch)
            if rows is not None:
                return rows
        return self.lookup(indices.device).now(indices)


def _check_place(shards: RankShards) -> int:
    """Compare the engine's rank with the EngineSpec's, and return the number of ranks."""
    tp_rank, tp_size = _parallel()
    spec = shards.spec
    if (tp_rank, tp_size) != (spec.rank, spec.world_size):
        raise EngineRefused(
            META.name,
            f"the engine says rank {tp_rank} of {tp_size}, "
            f"the EngineSpec says {spec.rank} of {spec.world_size}",
        )
    return tp_size


def _parallel() -> tuple[int, int]:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return parallel.tp_rank, parallel.tp_size


def _check_table(shards: RankShards, table: Table) -> None:
    """Compare the table that the engine wants with the one that config.json describes."""
    identity = shards.identity(table.layer_id)
    expected = (identity.total_rows, shards.config.head_dim)
    if (table.rows, table.dim) != expected:
        raise EngineRefused(
            META.name,
            f"the engine's table of layer {table.layer_id} has {table.rows} rows of {table.dim}, "
            f"config.json says {expected[0]} of {expected[1]}",
        )
    if table.column_bounds is not None and tuple(table.column_bounds) != identity.bounds:
        raise EngineRefused(
            META.name,
            f"the engine's hash columns of layer {table.layer_id} end at other rows than those "
            "that follow from config.json",
        )


def _ready(layer: OpenLayer, manifest_sha256: str | None) -> dict[str, Any]:
    identity, stats = layer.identity, layer.store.stats()
    return {
        "layer": identity.layer,
        "rank": identity.rank,
        "tp": identity.tp,
        "layout": identity.layout,
        "packed": True,
        "rows": [list(span) for span in identity.ranges],
        "total_rows": identity.total_rows,
        "file": layer.store.file.path,
        "manifest_sha256": manifest_sha256,
        "engine": stats.engine,
        "engine_reason": stats.engine_reason,
        "direct_io": stats.direct_io,
        "cache_bytes": stats.cache_bytes,
        "cache_slots": stats.cache_slots,
        "cache_ways": stats.cache_ways,
    }


def _placeholder(checkpoint_shape: tuple[int, int], dtype: torch.dtype) -> torch.nn.Parameter:
    """An empty parameter that accepts the checkpoint's tensor only to compare its shape."""
    parameter: Any = torch.nn.Parameter(
        torch.empty(0, checkpoint_shape[1], dtype=dtype), requires_grad=False
    )

    def compare(_: torch.nn.Parameter, loaded: torch.Tensor) -> None:
        if tuple(loaded.shape) != checkpoint_shape:
            raise EngineRefused(
                META.name,
                f"the checkpoint's table has shape {tuple(loaded.shape)}, "
                f"expected {checkpoint_shape}",
            )

    parameter.weight_loader = compare
    return parameter
