"""What a router does beyond its scores, and what it gives; checks of its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)

MAX_EXPERTS = 512
MAX_CHOSEN = 8


@dataclass(frozen=True)
class Router:
    """How a model routes; the defaults are those of its 384 experts."""

    chosen: int = 6
    """Experts per token."""
    scale: float = 1.5
    """Factor on weights that sum to 1; an fp32 value."""
    image_token: int = 129264
    """Tokens of this id are ranked by ``bias_vl``."""
    rows_per_request: int = 6
    """Rows of one request in a verify batch: the anchor and its drafts."""


@dataclass(frozen=True)
class RowFacts:
    """What a batch says of its rows; every part may be absent. All lie on the device.

    Their values are read when the kernel runs, so that a captured graph follows them.
    """

    tokens: torch.Tensor | None = None
    """[rows] int32 or int64, token ids; only read beside ``bias_vl``."""
    rows_not_padding: torch.Tensor | None = None
    """One int32 or int64: rows from there on are padding."""
    live_lengths: torch.Tensor | None = None
    """[at least requests] int64: rows of a request from this position on are dead."""


NO_FACTS = RowFacts()
DEFAULT = Router()


class Routes(NamedTuple):
    """Experts of every row, best first."""

    ids: torch.Tensor
    """[rows, chosen] int32; -1 in padding rows."""
    weights: torch.Tensor
    """[rows, chosen] fp32; 0 in padding rows."""


def check(
    scores: torch.Tensor,
    bias: torch.Tensor,
    bias_vl: torch.Tensor | None,
    rows: RowFacts,
    router: Router,
) -> None:
    """Refuse what the router cannot take.

    Raises:
        KernelArgumentError: naming the argument, its value and the expected one.
    """
    require_shape("scores", scores, (None, None))
    require_contiguous_rows("scores", scores)
    count, experts = scores.shape
    if not router.chosen <= experts <= MAX_EXPERTS:
        raise KernelArgumentError(
            f"scores: {experts} experts, expected {router.chosen} to {MAX_EXPERTS}"
        )
    if not 1 <= router.chosen <= MAX_CHOSEN:
        raise KernelArgumentError(f"chosen = {router.chosen}, expected 1 to {MAX_CHOSEN}")
    given = {"scores": scores, "bias": bias}
    if bias_vl is not None:
        if rows.tokens is None:
            raise KernelArgumentError("bias_vl without rows.tokens, expected the tokens beside it")
        given["bias_vl"] = bias_vl
        require_shape("tokens", rows.tokens, (count,))
        require_dtype("tokens", rows.tokens, torch.int32, torch.int64)
        require_contiguous("tokens", rows.tokens)
    for name, tensor in given.items():
        require_dtype(name, tensor, torch.float32)
        if name != "scores":
            require_shape(name, tensor, (experts,))
            require_contiguous(name, tensor)
    _check_facts(rows, count, router)
    facts = {name: value for name, value in vars(rows).items() if value is not None}
    require_same_device(**given, **facts)


def _check_facts(rows: RowFacts, count: int, router: Router) -> None:
    if rows.rows_not_padding is not None:
        require_dtype("rows_not_padding", rows.rows_not_padding, torch.int32, torch.int64)
        if rows.rows_not_padding.numel() != 1:
            require_shape("rows_not_padding", rows.rows_not_padding, (1,))
    if router.rows_per_request < 1:
        raise KernelArgumentError(
            f"rows_per_request = {router.rows_per_request}, expected at least 1"
        )
    if rows.live_lengths is not None:
        require_dtype("live_lengths", rows.live_lengths, torch.int64)
        require_contiguous("live_lengths", rows.live_lengths)
        require_shape("live_lengths", rows.live_lengths, (None,))
        requests, left = divmod(count, router.rows_per_request)
        if left or requests > rows.live_lengths.shape[0]:
            raise KernelArgumentError(
                f"scores: {count} rows, expected a multiple of {router.rows_per_request} for at "
                f"most {rows.live_lengths.shape[0]} live lengths"
            )
