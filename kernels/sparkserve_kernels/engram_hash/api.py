"""Row ids of n-grams, and the per-request history they look back at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.engram_hash.batch import HashTables, Runs
from sparkserve_kernels.engram_hash.tiles import ADVANCE, HASH
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["HashTables", "Runs", "advance_history", "engram_hash", "is_supported"]


def is_supported(tokens: torch.Tensor) -> bool:
    """Whether the kernels run where these tokens lie."""
    return supports(tokens)


def engram_hash(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    runs: Runs,
    tables: HashTables,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Row ids of a batch's tokens for every layer and column; bit-equal to the numpy reference.

    tokens: [T] int32 or int64; -1 blocks as a text's start does. T may be 0.
    positions: [T] int32 or int64, of each token in its request.
    runs: which request a token belongs to. tables: the model's hash.
    out: [T, L, (N-1)*heads] int64, contiguous; None for a new tensor.

    Returns:
        [T, L, (N-1)*heads] int64, columns by order and then by head.

    Raises:
        KernelArgumentError: a wrong shape, dtype or device.
        UnsupportedDevice: no kernel for where the tokens lie.

    Notes:
        Every id that the map lacks blocks as padding and media do: a kernel cannot refuse it, and
        must not look it up. What Engram is: docs/engram.md.
    """
    import torch

    if out is None:
        size = (tokens.shape[0], *tables.shape)
        out = torch.empty(size, dtype=torch.int64, device=tokens.device)
    _check_tokens(tokens, runs, tables.ngram - 1)
    require_shape("positions", positions, tuple(tokens.shape))
    require_dtype("positions", positions, torch.int32, torch.int64)
    require_contiguous("positions", positions)
    require_shape("out", out, (tokens.shape[0], *tables.shape))
    require_dtype("out", out, torch.int64)
    require_contiguous("out", out)
    require_same_device(tokens=tokens, positions=positions, out=out, token_map=tables.token_map)
    if tokens.shape[0]:
        target_of(tokens)
        _launch_hash(tokens, positions, runs, tables, out)
    return out


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
    """Make each request's history the newest tokens of what came before and what was accepted.

    history: [slots, N - 1] int32, oldest first; changed in place. It may be ``runs.before``.
    slots: [R] int32 or int64, each request's row of the history; those that move are distinct.
    tokens: [T] int32 or int64, laid out as the runs say.
    media: (m, v): an id of m or more is remembered as v.
    accepted: [R] int32 or int64, how many tokens of each run count, at most its length; None: all.
    places: [T] int32 or int64, where each token's keys are stored; a run whose last place is 0 is
        padding and leaves no trace. None: no run is padding.

    Returns:
        ``history``. A run of which nothing was accepted leaves it alone.

    Raises:
        KernelArgumentError: a wrong shape, dtype or device.
        UnsupportedDevice: no kernel for where the tokens lie.
    """
    import torch

    _check_tokens(tokens, runs, int(history.shape[-1]))
    require_shape("history", history, (None, runs.before.shape[1]))
    require_dtype("history", history, torch.int32)
    require_contiguous("history", history)
    if runs.block is not None and tokens.shape[0] < runs.block * runs.requests:
        raise KernelArgumentError(
            f"{tokens.shape[0]} tokens, expected at least {runs.block} for each of "
            f"{runs.requests} requests"
        )
    _check_indices(history, runs.requests, slots=slots, accepted=accepted)
    _check_indices(history, tokens.shape[0], places=places)
    if runs.requests:
        target_of(tokens)
        _launch_advance(history, slots, tokens, runs, media=media, optional=(accepted, places))
    return history


def _check_tokens(tokens: torch.Tensor, runs: Runs, lookback: int) -> None:
    import torch

    require_shape("tokens", tokens, (None,))
    require_dtype("tokens", tokens, torch.int32, torch.int64)
    require_contiguous("tokens", tokens)
    require_shape("before", runs.before, (None, lookback))
    require_same_device(tokens=tokens, before=runs.before)


def _check_indices(beside: torch.Tensor, size: int, **tensors: torch.Tensor | None) -> None:
    import torch

    for name, tensor in tensors.items():
        if tensor is not None:
            require_shape(name, tensor, (size,))
            require_dtype(name, tensor, torch.int32, torch.int64)
            require_contiguous(name, tensor)
            require_same_device(history=beside, **{name: tensor})


def _launch_hash(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    runs: Runs,
    tables: HashTables,
    out: torch.Tensor,
) -> None:
    import triton

    from sparkserve_kernels.engram_hash.kernel import hash_kernel

    hash_kernel[(triton.cdiv(tokens.shape[0], HASH.size), tables.shape[0])](
        tokens,
        positions,
        runs.before,
        runs.before if runs.rows is None else runs.rows,
        runs.before if runs.ends is None else runs.ends,
        tables.token_map,
        tables.multipliers,
        tables.primes,
        tables.first_rows,
        out,
        tokens.shape[0],
        runs.requests,
        runs.block or 1,
        tables.token_map.shape[0],
        tables.pad_id,
        -1 if tables.image_token is None else tables.image_token,
        NGRAM=tables.ngram,
        HEADS=tables.heads,
        HEADS_PADDED=triton.next_power_of_2(tables.heads),
        RAGGED=runs.ends is not None,
        BY_ROW=runs.rows is not None,
        VISION=tables.image_token is not None,
        TOKENS=HASH.size,
        CHUNK=HASH.chunk,
        num_warps=HASH.warps,
    )


def _launch_advance(
    history: torch.Tensor,
    slots: torch.Tensor,
    tokens: torch.Tensor,
    runs: Runs,
    *,
    media: tuple[int, int],
    optional: tuple[torch.Tensor | None, torch.Tensor | None],
) -> None:
    import triton

    from sparkserve_kernels.engram_hash.kernel import advance_kernel

    accepted, places = optional
    lookback = history.shape[1]
    advance_kernel[(triton.cdiv(runs.requests, ADVANCE.size),)](
        history,
        slots,
        tokens,
        runs.before,
        slots if runs.rows is None else runs.rows,
        slots if runs.ends is None else runs.ends,
        slots if accepted is None else accepted,
        tokens if places is None else places,
        runs.requests,
        runs.block or 1,
        *media,
        LOOKBACK=lookback,
        PADDED=triton.next_power_of_2(lookback),
        RAGGED=runs.ends is not None,
        BY_ROW=runs.rows is not None,
        PARTLY=accepted is not None,
        PLACED=places is not None,
        REQUESTS=ADVANCE.size,
        num_warps=ADVANCE.warps,
    )
