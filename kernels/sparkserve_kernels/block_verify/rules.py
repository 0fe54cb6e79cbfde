"""What block verification takes and gives, and checks of its arguments."""

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

MAX_DRAFTS = 8
LEAST_DRAFT_PROBABILITY = 1e-30
"""A drafted token's own probability is taken as at least this, so that no ratio divides by 0."""


@dataclass(frozen=True)
class Block:
    """Drafted tokens and the two distributions at every position, as fp32 probabilities."""

    target: torch.Tensor
    """[requests, drafts + 1, vocabulary]: after temperature, top-k and top-p."""
    draft: torch.Tensor
    """[requests, drafts, vocabulary]: what the drafts were really drawn from."""
    tokens: torch.Tensor
    """[requests, drafts] int32 or int64: the drafts."""
    live_lengths: torch.Tensor | None = None
    """[at least requests] int64: 1 + live drafts; later drafts are as if never drafted."""
    greedy: torch.Tensor | None = None
    """[requests] bool: verify these against the target's likeliest token (lowest id of equals)."""

    @property
    def requests(self) -> int:
        """Number of requests."""
        return int(self.target.shape[0])

    @property
    def drafts(self) -> int:
        """Drafts per request."""
        return int(self.tokens.shape[1])

    @property
    def vocabulary(self) -> int:
        """Number of tokens there are."""
        return int(self.target.shape[2])


class Verdict(NamedTuple):
    """What a verify commits: the leading drafts and one token of the target."""

    accepted: torch.Tensor
    """[requests] int32: how many drafts."""
    token: torch.Tensor
    """[requests] int64: the token after them."""


def check(block: Block, noise: torch.Tensor) -> None:
    """Refuse what the op cannot take.

    Raises:
        KernelArgumentError: naming the argument, its value and the expected one.
    """
    require_shape("tokens", block.tokens, (None, None))
    requests, drafts = block.tokens.shape
    if not 1 <= drafts <= MAX_DRAFTS:
        raise KernelArgumentError(f"tokens: {drafts} drafts, expected 1 to {MAX_DRAFTS}")
    require_shape("target", block.target, (requests, drafts + 1, None))
    if not 1 <= block.vocabulary < 2**31:
        raise KernelArgumentError(f"target: {block.vocabulary} tokens, expected 1 to 2^31 - 1")
    require_shape("draft", block.draft, (requests, drafts, block.vocabulary))
    require_dtype("target", block.target, torch.float32)
    require_dtype("draft", block.draft, torch.float32)
    require_dtype("tokens", block.tokens, torch.int32, torch.int64)
    require_contiguous("tokens", block.tokens)
    require_contiguous_rows("target", block.target)
    require_contiguous_rows("draft", block.draft)
    require_shape("noise", noise, (2,))
    require_dtype("noise", noise, torch.int64)
    require_contiguous("noise", noise)
    if block.live_lengths is not None:
        require_dtype("live_lengths", block.live_lengths, torch.int64)
        require_contiguous("live_lengths", block.live_lengths)
        require_shape("live_lengths", block.live_lengths, (None,))
        if block.live_lengths.shape[0] < requests:
            require_shape("live_lengths", block.live_lengths, (requests,))
    if block.greedy is not None:
        require_dtype("greedy", block.greedy, torch.bool)
        require_shape("greedy", block.greedy, (requests,))
        require_contiguous("greedy", block.greedy)
    given = {name: tensor for name, tensor in vars(block).items() if tensor is not None}
    require_same_device(**given, noise=noise)
