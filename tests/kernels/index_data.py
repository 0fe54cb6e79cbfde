"""Random inputs of the indexer's kernels; group scales of a vector differ by at most 2^4."""

from __future__ import annotations

import torch
from sparkserve_kernels.index_scores.keys import KeyPages


def draw_keys(count: int, generator: torch.Generator) -> torch.Tensor:
    """[count, 68] uint8 records."""
    device = generator.device
    records = torch.randint(
        0, 256, (count, 68), dtype=torch.uint8, device=device, generator=generator
    )
    records[:, 64:] = torch.randint(
        121, 126, (count, 4), dtype=torch.uint8, device=device, generator=generator
    )
    return records


def draw_rows(
    rows: int, keys: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Queries, their scales, weights of both signs, and visible counts of 0 to keys."""
    device = generator.device
    packed = draw_keys(rows * 32, generator).reshape(rows, 32, 68)
    weights = torch.randn((rows, 32), device=device, generator=generator).to(dtype)
    visible = torch.randint(
        0, keys + 1, (rows,), dtype=torch.int32, device=device, generator=generator
    )
    visible[-1:] = keys
    return [packed[..., :64].contiguous(), packed[..., 64:].contiguous(), weights, visible]


def paged(
    lists: list[torch.Tensor], *, slots: int, generator: torch.Generator, padding: int = 0
) -> KeyPages:
    """The records of some requests in shuffled pages; what no record fills is 0xFF (NaN scales)."""
    device = generator.device
    per_request = max(1, max(-(-len(records) // slots) for records in lists))
    total = per_request * len(lists)
    order = torch.randperm(total, generator=generator, device=device)
    pages = torch.full((total, slots * 68 + padding), 0xFF, dtype=torch.uint8, device=device)
    table = order.reshape(len(lists), per_request).to(torch.int32)
    for request, records in enumerate(lists):
        for first in range(0, len(records), slots):
            some = records[first : first + slots]
            page = pages[int(table[request, first // slots])]
            page[: len(some) * 64] = some[:, :64].reshape(-1)
            page[slots * 64 : slots * 64 + len(some) * 4] = some[:, 64:].reshape(-1)
    return KeyPages(pages, table, slots)
