"""Build the class that takes EngramEmbedding's place; nothing is changed here.

No name of the engine's module may be bound at module level: after a replacement SGLang rewrites
every module-level name that held the original, so such a base class would become its own child.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sparkserve.adapters.engram_rows import EMBEDDING, META, Settings
from sparkserve.adapters.engram_rows.reader import FileRowReader, RowReader
from sparkserve.adapters.engram_rows.stats import StatsFile
from sparkserve.adapters.install import Patch
from sparkserve.engram.ownership import RowRange, columns_range, equal_range
from sparkserve.engram.shard import ShardName, read_header, row_bytes_of
from sparkserve.errors import EngineRefused, ShardError
from sparkserve.model.engine_spec import EngineSpec, EngramSpec

_OTHER_BACKENDS = (
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE",
    "SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS",
    "SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING",
)


def install(spec: EngineSpec, settings: Settings) -> tuple[Patch, ...]:
    """Judge this rank's shards and return the class replacement.

    Raises:
        EngineRefused: no Engram directory, a layout that is not served, or another row backend.
        ShardError: no shard of this rank, or one that cannot be trusted.
    """
    from sglang.srt.layers import engram

    if spec.engram is None:
        raise EngineRefused(META.name, "the EngineSpec names no Engram directory")
    if spec.engram.layout == "strided":
        raise EngineRefused(META.name, "layout strided is not served, expected columns or equal")
    for variable in _OTHER_BACKENDS:
        if spec.env.get(variable, "0").lower() not in ("", "0", "false"):
            raise EngineRefused(META.name, f"{variable} asks for another backend of the rows")
    check_shards(spec)
    return (Patch(EMBEDDING, embedding_class(engram.EngramEmbedding, spec, settings)),)


def check_shards(spec: EngineSpec) -> tuple[Path, ...]:
    """Header and size of every shard of this rank.

    Raises:
        ShardError: there is none, or one is truncated or foreign.
    """
    directory = Path(_engram(spec).directory)
    mine = [
        path
        for path in sorted(directory.glob("engram-l*.bin"))
        if (name := ShardName.parse(path.name))
        and name[1:] == (spec.rank, spec.world_size, "contiguous")
    ]
    if not mine:
        wanted = f"engram-l*-r{spec.rank}of{spec.world_size}.bin"
        raise ShardError(str(directory), f"holds no shard of this rank, expected {wanted}")
    for path in mine:
        read_header(path)
    return tuple(mine)


def embedding_class(base: type, spec: EngineSpec, settings: Settings) -> type:
    """A subclass of the engine's EngramEmbedding whose rows lie in this rank's shards.

    Only construction, loading and ``_owned_rows`` differ: zero rows for what other ranks own,
    the sum over ranks and every parallel path around the lookup stay the engine's own.
    """
    stats = StatsFile(spec.run_dir, spec.rank, settings.stats_interval_s)

    class ShardEngramEmbedding(base):  # type: ignore[misc]
        def __init__(
            self,
            num_embeddings: int,
            dim: int,
            layer_id: int,
            column_bounds: tuple[int, ...] | None = None,
        ) -> None:
            # Not the engine's own constructor: it would allocate the whole share in memory.
            torch.nn.Module.__init__(self)
            tp_rank, self.tp_size = _parallel()
            expected = _range_of(spec, num_embeddings, column_bounds, (tp_rank, self.tp_size))
            self._reader = _open(spec, layer_id, dim, num_embeddings)
            self.row_start, self.rows, self.dim = expected.start, expected.rows, dim
            _same_range(spec, layer_id, self._reader, expected)
            self.peer = None
            self.host_table = None
            self.staged_by_scheduler = False
            self._sort_host_reads = False
            self._counters = stats.layer(layer_id)
            self.weight = _placeholder((num_embeddings, dim), torch.float8_e4m3fn)
            self.scale = _placeholder((num_embeddings, dim // 32), torch.float8_e8m0fnu)

        def finish_load(self, label: str) -> None:
            """Nothing was loaded into memory, so nothing is left to finish."""

        def _owned_rows(self, indices: torch.Tensor) -> torch.Tensor:
            local = indices.reshape(-1).cpu() - self.row_start
            owned = ((local >= 0) & (local < self.rows)).nonzero().squeeze(-1)
            out = torch.zeros(local.numel(), self.dim, dtype=torch.bfloat16)
            wanted = local[owned].tolist()
            if wanted:
                data = bytearray(len(wanted) * self._reader.header.row_bytes)
                rows_read = self._reader.read(wanted, data)
                out[owned] = dequantise(data, self.dim)
                self._counters.lookups += 1
                self._counters.ids += len(wanted)
                self._counters.rows_read += rows_read
            return out.to(indices.device).view(*indices.shape, self.dim)

    return ShardEngramEmbedding


def dequantise(data: bytearray, dim: int) -> torch.Tensor:
    """Rows as the engine's CPU path computes them: fp32 product, one rounding to bf16.

    data: rows of ``dim`` e4m3 bytes and ``dim / 32`` e8m0 bytes.

    Returns:
        [rows, dim], bfloat16.
    """
    rows = torch.frombuffer(data, dtype=torch.uint8).view(-1, row_bytes_of(dim))
    weights = rows[:, :dim].contiguous().view(torch.float8_e4m3fn).float()
    scales = rows[:, dim:].contiguous().view(torch.float8_e8m0fnu).float()
    scaled = weights.unflatten(-1, (-1, 32)) * scales.unsqueeze(-1)
    return scaled.flatten(-2).to(torch.bfloat16)


def _engram(spec: EngineSpec) -> EngramSpec:
    if spec.engram is None:
        raise EngineRefused(META.name, "the EngineSpec names no Engram directory")
    return spec.engram


def _parallel() -> tuple[int, int]:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return parallel.tp_rank, parallel.tp_size


def _range_of(
    spec: EngineSpec,
    total_rows: int,
    column_bounds: tuple[int, ...] | None,
    place: tuple[int, int],
) -> RowRange:
    if place != (spec.rank, spec.world_size):
        raise EngineRefused(
            META.name,
            f"the engine says rank {place[0]} of {place[1]}, "
            f"the EngineSpec says {spec.rank} of {spec.world_size}",
        )
    if column_bounds is not None and column_bounds[-1] != total_rows:
        raise EngineRefused(
            META.name,
            f"the hash columns end at row {column_bounds[-1]}, the table has {total_rows} rows",
        )
    if place[1] == 1:
        return RowRange(0, total_rows)
    if _engram(spec).layout == "equal":
        return equal_range(total_rows, *place)
    if column_bounds is None:
        raise EngineRefused(
            META.name,
            "this SGLang names no column bounds, so layout columns cannot be proved; "
            "expected shards of layout equal",
        )
    return columns_range(column_bounds, *place)


def _open(spec: EngineSpec, layer_id: int, dim: int, total_rows: int) -> RowReader:
    name = ShardName(layer_id, spec.rank, spec.world_size)
    path = Path(_engram(spec).directory) / name.file_name
    try:
        reader = FileRowReader(path)
    except ShardError as error:
        raise EngineRefused(META.name, error.message) from error
    header = reader.header
    if header.row_bytes != row_bytes_of(dim) or header.total_rows != total_rows:
        reader.close()
        raise EngineRefused(
            META.name,
            f"{path} belongs to another table: {header.total_rows} rows of {header.row_bytes} "
            f"bytes, expected {total_rows} rows of {row_bytes_of(dim)}",
        )
    return reader


def _same_range(spec: EngineSpec, layer_id: int, reader: RowReader, expected: RowRange) -> None:
    found = reader.header.rows
    if found != expected:
        reader.close()
        raise EngineRefused(
            META.name,
            f"shard of layer {layer_id} in {_engram(spec).directory} holds rows {found.start} to "
            f"{found.end}, but layout {_engram(spec).layout} gives rank {spec.rank} rows "
            f"{expected.start} to {expected.end}",
        )


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
