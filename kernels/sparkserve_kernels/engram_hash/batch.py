"""What a hash needs besides the tokens: the model's constants, and which token is whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)

if TYPE_CHECKING:
    import torch

MEDIA_START = 1_000_000
"""Ids from here up stand for parts of images and other media; no map reaches so far."""


@dataclass(frozen=True)
class HashTables:
    """A model's hash; checked when it is made."""

    token_map: torch.Tensor
    """[token ids] int32 or int64, compressed id of every token id."""
    multipliers: torch.Tensor
    """[L, N] int64, by layer and distance."""
    primes: torch.Tensor
    """[L, N - 1, heads] int64, positive."""
    first_rows: torch.Tensor
    """[L, (N - 1) * heads] int64, first row of every column."""
    pad_id: int
    """Compressed id that stands for what is blocked."""
    image_token: int | None
    """None in a model without vision."""

    def __post_init__(self) -> None:
        import torch

        require_shape("multipliers", self.multipliers, (None, None))
        layers, ngram = self.multipliers.shape
        if ngram < 2:
            raise KernelArgumentError(f"multipliers for {ngram} distances, expected at least 2")
        require_shape("primes", self.primes, (layers, ngram - 1, None))
        require_shape("first_rows", self.first_rows, (layers, (ngram - 1) * self.heads))
        require_shape("token_map", self.token_map, (None,))
        require_dtype("token_map", self.token_map, torch.int32, torch.int64)
        if len(self.token_map) > MEDIA_START:
            raise KernelArgumentError(
                f"token_map of {len(self.token_map)} ids, expected at most {MEDIA_START}: from "
                f"there up they stand for media"
            )
        named = {
            "multipliers": self.multipliers,
            "primes": self.primes,
            "first_rows": self.first_rows,
        }
        for name, tensor in named.items():
            require_dtype(name, tensor, torch.int64)
            require_contiguous(name, tensor)
        require_contiguous("token_map", self.token_map)
        require_same_device(token_map=self.token_map, **named)

    @property
    def ngram(self) -> int:
        """Tokens of a window."""
        return int(self.multipliers.shape[1])

    @property
    def heads(self) -> int:
        """Hash columns of each order."""
        return int(self.primes.shape[2])

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, columns)."""
        layers, columns = self.first_rows.shape
        return int(layers), int(columns)


@dataclass(frozen=True)
class Runs:
    """Which tokens of a batch belong to which request, and what came before them.

    Either all runs have ``block`` tokens (1 for decode, the block of a verify), or ``ends`` says
    where each ends. Tokens behind the last run are padding: fully blocked.
    """

    before: torch.Tensor
    """[rows, N - 1] int32, oldest first: the history, or what the scheduler supplied."""
    rows: torch.Tensor | None
    """[R] int32 or int64, the row of ``before`` of each request; None: request r has row r."""
    block: int | None = None
    ends: torch.Tensor | None = None
    """[R] int32 or int64, ascending: one past each run's last token; empty runs repeat it."""

    def __post_init__(self) -> None:
        import torch

        if (self.block is None) == (self.ends is None):
            raise KernelArgumentError(
                f"block {self.block} and {'no ' if self.ends is None else ''}ends, expected "
                f"exactly one of them"
            )
        if self.block is not None and self.block < 1:
            raise KernelArgumentError(f"block = {self.block}, expected at least 1")
        require_shape("before", self.before, (None, None))
        require_dtype("before", self.before, torch.int32)
        require_contiguous("before", self.before)
        for name, tensor in (("rows", self.rows), ("ends", self.ends)):
            if tensor is not None:
                require_shape(name, tensor, (self.requests,))
                require_dtype(name, tensor, torch.int32, torch.int64)
                require_contiguous(name, tensor)
                require_same_device(before=self.before, **{name: tensor})

    @property
    def requests(self) -> int:
        """How many there are."""
        return int((self.before if self.rows is None else self.rows).shape[0])
