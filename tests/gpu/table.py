"""A random Engram table in shards, opened by our store, with an independent reference gather."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sparkserve.engram.layout import column_bounds, column_sizes
from sparkserve.engram.ownership import Layout
from sparkserve.engram.shard import ShardIdentity, row_bytes_of, write_shard

COLUMNS, DIM, BLOCK = 24, 256, 32
LAYER = 1


@dataclass(frozen=True)
class Table:
    """All rows of one layer, [rows, 264] uint8, as DeepSeek-V4.1-Flash has them but fewer."""

    bounds: tuple[int, ...]
    rows: np.ndarray

    @classmethod
    def random(cls, column_rows: int, seed: int) -> Table:
        """A table of 24 columns of about so many rows each.

        column_rows: the columns' primes begin here.
        """
        bounds = column_bounds(column_sizes(1, 4, COLUMNS // 3, column_rows)[0])
        source = np.random.default_rng(seed)
        rows = source.integers(0, 256, (bounds[-1], row_bytes_of(DIM)), dtype=np.uint8)
        weights, scales = rows[:, :DIM], rows[:, DIM:]
        # e4m3 has one NaN of each sign; scales stay where no product leaves bfloat16's normals.
        weights[(weights & 0x7F) == 0x7F] = 0x7E
        scales[...] = 100 + scales % 40
        return cls(bounds, rows)

    @property
    def total_rows(self) -> int:
        return self.bounds[-1]

    def identity(self, layout: Layout, rank: int, tp: int) -> ShardIdentity:
        return ShardIdentity(LAYER, rank, tp, layout, self.bounds, row_bytes_of(DIM))

    def write(self, folder: Path, identity: ShardIdentity) -> Path:
        """Write one rank's shard."""
        path = folder / identity.file_name
        chunks = (self.rows[start:end].tobytes() for start, end in identity.ranges)
        write_shard(path, identity.header, chunks)
        return path

    def ids(self, tokens: int, seed: int) -> torch.Tensor:
        """Row ids as the hash makes them, one per column, [tokens, 24] int64 on the CPU."""
        source = np.random.default_rng(seed)
        columns = [
            source.integers(self.bounds[c], self.bounds[c + 1], tokens) for c in range(COLUMNS)
        ]
        return torch.from_numpy(np.stack(columns, axis=1))


class Reference:
    """What a lookup must give, by torch's own arithmetic over the whole table in memory."""

    def __init__(self, table: Table, identity: ShardIdentity, device: str) -> None:
        rows = torch.from_numpy(table.rows).to(device)
        self.weights = rows[:, :DIM].contiguous()
        self.scales = rows[:, DIM:].contiguous()
        self.owned = torch.zeros(table.total_rows, dtype=torch.bool, device=device)
        for start, end in identity.ranges:
            self.owned[start:end] = True

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[..., 256] bfloat16; zero where another rank owns the row."""
        weights = self.weights[ids].view(torch.float8_e4m3fn).float()
        # 2 ** (byte - 127), made of the bits of a float32.
        scales = (self.scales[ids].to(torch.int32) << 23).view(torch.float32)
        values = weights.unflatten(-1, (-1, BLOCK)) * scales.unsqueeze(-1)
        mine = self.owned[ids].unsqueeze(-1)
        rows = values.flatten(-2).to(torch.bfloat16)
        return torch.where(mine, rows, torch.zeros_like(rows))

    def differing(self, found: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """How many rows are not the same to the last bit; a tensor, so that nothing waits."""
        expected = self.rows(ids).view(torch.int16)
        return (found.view(torch.int16) != expected).any(-1).sum()


def open_layer(path: Path, identity: ShardIdentity, engine: Literal["io_uring", "pread"]) -> Any:
    """The shard as the adapter opens it: no cache, 128 reads in flight.

    Raises:
        OSError: the kernel refuses this engine.
    """
    from sparkserve_native import StoreOptions

    from sparkserve.adapters.engram_rows.shards import OpenLayer
    from sparkserve.engram.rows import open_rows

    return OpenLayer(identity, open_rows(path, identity, StoreOptions(engine=engine)))
