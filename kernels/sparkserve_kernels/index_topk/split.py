"""Rows of the indexer shared out among tensor-parallel ranks, as pure functions.

Every rank scores its rows against all keys and the selected ids are gathered: integers only, so
that nothing is lost. A caller passes the full row count as ``rows_hint``, gathers ``pack``'s
result along axis 0 and unpacks it. Eligibility is a function of what all ranks know; the settings
themselves are gathered and compared first, because a rank that decided alone would leave the
others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sparkserve_kernels.checks import KernelArgumentError

TILE_ROWS = 128
NONE = -1


class SplitMismatch(ValueError):
    """Ranks do not agree on the settings of the split."""


@dataclass(frozen=True)
class SplitSettings:
    """When the rows are split; the same on every rank."""

    world: int
    min_rows: int = 1024
    min_context: int = 32768
    worlds: tuple[int, ...] = (4, 8)
    capabilities: tuple[tuple[int, int], ...] = ((12, 1),)


@dataclass(frozen=True)
class SplitCase:
    """One forward pass, described by what is identical on all ranks."""

    rows: int
    max_context: int
    capability: tuple[int, int]
    prefill: bool
    capturing: bool
    draft: bool


class Eligibility(NamedTuple):
    """Whether the rows are split, and if not, why."""

    ok: bool
    reason: str


def eligibility(settings: SplitSettings, case: SplitCase) -> Eligibility:
    """Whether a forward pass is split."""
    refusals = (
        (case.draft, "draft model"),
        (not case.prefill, "no prefill"),
        (case.capturing, "graph capture"),
        (
            settings.world not in settings.worlds,
            f"{settings.world} ranks, expected one of {list(settings.worlds)}",
        ),
        (
            case.capability not in settings.capabilities,
            f"capability {case.capability}, expected one of {list(settings.capabilities)}",
        ),
        (
            case.rows < settings.min_rows,
            f"{case.rows} rows, expected at least {settings.min_rows}",
        ),
        (
            case.max_context < settings.min_context,
            f"context {case.max_context}, expected at least {settings.min_context}",
        ),
    )
    for refused, reason in refusals:
        if refused:
            return Eligibility(ok=False, reason=reason)
    return Eligibility(ok=True, reason="")


def require_equal_settings(gathered: Sequence[SplitSettings]) -> None:
    """Refuse ranks that differ.

    Raises:
        SplitMismatch: naming the first rank that differs from rank 0, and both settings.
    """
    for rank, settings in enumerate(gathered):
        if settings != gathered[0]:
            raise SplitMismatch(f"rank {rank} has {settings}, expected {gathered[0]} as rank 0")


def extent_of(rows: int, world: int) -> int:
    """Rows per rank, a multiple of 128.

    Raises:
        KernelArgumentError: no rank, or fewer than 0 rows.
    """
    if world < 1 or rows < 0:
        raise KernelArgumentError(
            f"{rows} rows on {world} ranks, expected at least 0 rows and 1 rank"
        )
    return -(-rows // (world * TILE_ROWS)) * TILE_ROWS


def rows_of(rows: int, rank: int, world: int) -> range:
    """The rows of a rank; the last ranks may have none.

    Raises:
        KernelArgumentError: no such rank.
    """
    if not 0 <= rank < world:
        raise KernelArgumentError(f"rank {rank}, expected 0 to {world - 1}")
    extent = extent_of(rows, world)
    return range(min(rows, rank * extent), min(rows, (rank + 1) * extent))


def pack(positions: torch.Tensor, blocks: torch.Tensor | None, extent: int) -> torch.Tensor:
    """What a rank sends: its ids side by side, filled up with -1.

    Args:
        positions: [rows of the rank, k] int32.
        blocks: [rows of the rank, blocks] int32, or None.
        extent: rows per rank.

    Returns:
        [extent, k + blocks] int32.

    Raises:
        KernelArgumentError: more rows than the extent, or blocks of other rows.
    """
    rows, k = positions.shape
    width = 0 if blocks is None else blocks.shape[1]
    if rows > extent:
        raise KernelArgumentError(f"{rows} rows, expected at most the extent {extent}")
    if blocks is not None and blocks.shape[0] != rows:
        raise KernelArgumentError(f"blocks: {blocks.shape[0]} rows, expected {rows}")
    packed = positions.new_full((extent, k + width), NONE, dtype=torch.int32)
    packed[:rows, :k] = positions
    if blocks is not None:
        packed[:rows, k:] = blocks
    return packed


def unpack(gathered: torch.Tensor, rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Positions and blocks of all rows.

    Args:
        gathered: [world * extent, k + blocks] int32, the ranks' parts in order of rank.
        rows: rows of the whole pass.
        k: columns that are positions.

    Returns:
        Views [rows, k] and [rows, blocks]; no blocks where there are no further columns.

    Raises:
        KernelArgumentError: fewer rows or columns than asked for.
    """
    have, width = gathered.shape
    if have < rows or width < k:
        raise KernelArgumentError(
            f"gathered: shape [{have}, {width}], expected at least [{rows}, {k}]"
        )
    return gathered[:rows, :k], gathered[:rows, k:] if width > k else None


def mask_of_blocks(blocks: torch.Tensor, keys: int, *, size: int = 8) -> torch.Tensor:
    """Which keys lie in a row's blocks.

    Args:
        blocks: [rows, blocks] int32 ids, -1 for none.
        keys: how many keys there are.
        size: keys per block.

    Returns:
        [rows, keys] bool.
    """
    count = -(-keys // size)
    chosen = torch.zeros((blocks.shape[0], count + 1), dtype=torch.bool, device=blocks.device)
    chosen.scatter_(1, blocks.long() + 1, torch.ones_like(blocks, dtype=torch.bool))
    return chosen[:, 1:].repeat_interleave(size, dim=1)[:, :keys]
