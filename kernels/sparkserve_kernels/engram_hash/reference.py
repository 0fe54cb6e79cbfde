"""The same hash and history in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.engram_hash.batch import HashTables, Runs

if TYPE_CHECKING:
    import torch


def engram_hash(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    runs: Runs,
    tables: HashTables,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``api.engram_hash``."""
    import torch

    windows, in_run = _windows(tokens, runs, tables.ngram)
    distance = torch.arange(tables.ngram, device=tokens.device)
    blocked = (positions[:, None] < distance) | ~in_run[:, None]
    blocked |= (windows < 0) | (windows >= tables.token_map.shape[0])
    if tables.image_token is not None:
        blocked |= windows == tables.image_token
    blocked = blocked.cummax(dim=1).values
    compressed = tables.token_map[torch.where(blocked, 0, windows)].long()
    compressed = torch.where(blocked, tables.pad_id, compressed)
    products = compressed[:, None] * tables.multipliers
    mixed = products[..., 0]
    columns = []
    for order in range(1, tables.ngram):
        mixed = mixed ^ products[..., order]
        columns.append(mixed[..., None] % tables.primes[:, order - 1])
    ids = torch.stack(columns, dim=2).flatten(2) + tables.first_rows
    return ids if out is None else out.copy_(ids)


def advance_history(
    history: torch.Tensor,
    slots: torch.Tensor,
    tokens: torch.Tensor,
    runs: Runs,
    *,
    media: tuple[int, int],
    accepted: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``api.advance_history``."""
    import torch

    starts, ends = _bounds(runs)
    counts = ends - starts if accepted is None else accepted
    before = runs.before if runs.rows is None else runs.before[runs.rows]
    moved = []
    for request, count in enumerate(counts.tolist()):
        if count == 0 or (places is not None and int(places[int(ends[request]) - 1]) == 0):
            continue
        start = int(starts[request])
        known = torch.cat((before[request].long(), tokens[start : start + count].long()))
        known = torch.where(known >= media[0], media[1], known)
        moved.append((request, known[count:].int()))
    for request, row in moved:
        history[slots[request]] = row
    return history


def _bounds(runs: Runs) -> tuple[torch.Tensor, torch.Tensor]:
    """First token of every run, and one past its last."""
    import torch

    if runs.ends is not None:
        ends = runs.ends.long()
        return torch.cat((torch.zeros_like(ends[:1]), ends[:-1])), ends
    starts = torch.arange(runs.requests, device=runs.before.device) * (runs.block or 1)
    return starts, starts + (runs.block or 1)


def _windows(tokens: torch.Tensor, runs: Runs, ngram: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every token with its predecessors, [T, N] int64, and which tokens belong to a run."""
    import torch

    at = torch.arange(len(tokens), device=tokens.device)
    if runs.requests == 0:
        zeros = torch.zeros((len(tokens), ngram), dtype=torch.int64, device=tokens.device)
        return zeros, at < 0
    starts, ends = _bounds(runs)
    run = (ends[None, :] <= at[:, None]).sum(dim=1)
    in_run = run < runs.requests
    run = run.clamp(max=runs.requests - 1)
    offset = torch.where(in_run, at - starts[run], 0)[:, None]
    row = run if runs.rows is None else runs.rows[run].long()
    distance = torch.arange(ngram, device=tokens.device)
    in_batch = distance <= offset
    here = tokens[(at[:, None] - distance).clamp(min=0)].long()
    column = (ngram - 1 - (distance - offset)).clamp(0, ngram - 2)
    older = runs.before[row[:, None], column].long()
    return torch.where(in_batch, here, older), in_run
