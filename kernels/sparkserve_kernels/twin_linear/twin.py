"""The twin of a weight, made, dropped and restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.numerics.twins import dequantise_twin, fp8_twin

GROUP = 32


@dataclass(frozen=True)
class Twin:
    """A weight of one or several groups as ``q * 2^(exponents - 127)``."""

    q: torch.Tensor
    """(groups, N, K), float8_e4m3fn, contiguous."""
    exponents: torch.Tensor
    """(groups, N/block_rows, K/32), uint8 (e8m0), contiguous."""
    exact: bool
    """Whether every element decodes to its very bf16 value."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, N, K."""
        groups, columns, k = self.q.shape
        return groups, columns, k

    @property
    def block_rows(self) -> int:
        """Rows that share an exponent: 32 (the checkpoint's grid) or 1."""
        return int(self.q.shape[1] // self.exponents.shape[1])

    def check(self) -> None:
        """Refuse parts that do not belong together.

        Raises:
            KernelArgumentError: naming what is off.
        """
        require_shape("twin.q", self.q, (None, None, None))
        require_dtype("twin.q", self.q, torch.float8_e4m3fn)
        require_dtype("twin.exponents", self.exponents, torch.uint8)
        groups, columns, k = self.q.shape
        if k == 0 or k % GROUP:
            raise KernelArgumentError(f"K = {k}, expected a multiple of {GROUP} above 0")
        grids = tuple((groups, columns // rows, k // GROUP) for rows in (GROUP, 1))
        by_row = tuple(self.exponents.shape) == grids[1]
        if not by_row and (columns % GROUP or tuple(self.exponents.shape) != grids[0]):
            have = ", ".join(map(str, self.exponents.shape))
            raise KernelArgumentError(
                f"twin.exponents: shape [{have}], expected {list(grids[0])} or {list(grids[1])}"
            )
        require_contiguous("twin.q", self.q)
        require_contiguous("twin.exponents", self.exponents)
        require_same_device(q=self.q, exponents=self.exponents)


def twin_of(weight: torch.Tensor, *, block_rows: int = 32, exact: bool = False) -> Twin:
    """The fp8 twin of a weight.

    weight: (N, K) or (groups, N, K), bf16. block_rows: 32 for the checkpoint's grid, 1 for an
    exponent per (row, 32 columns), as the draft's main projection has it. exact: refuse a weight
    that does not come back to the last bit.

    Raises:
        KernelArgumentError: dtype or shape, or an inexact twin where an exact one is asked for.

    Notes:
        docs/format/numbers.md, "Fp8 twins". wo_a comes from e4m3 blocks of the checkpoint and is
        exact; a genuine bf16 matrix such as lm_head is not.
    """
    if weight.dim() == 2:
        weight = weight.unsqueeze(0)
    require_shape("weight", weight, (None, None, None))
    if len(weight) == 0:
        raise KernelArgumentError(
            f"weight: shape {list(weight.shape)}, expected at least one group"
        )
    parts = [fp8_twin(part, block_rows) for part in weight]
    if exact and not all(part.exact for part in parts):
        raise KernelArgumentError(
            "weight: its fp8 twin decodes to other bf16 values, expected an exact one (a tensor "
            "that came from e4m3 blocks)"
        )
    return Twin(
        torch.stack([part.q.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn),
        torch.stack([part.exponents for part in parts]),
        all(part.exact for part in parts),
    )


def restore_weight(twin: Twin) -> torch.Tensor:
    """A fresh bf16 copy (groups, N, K): never a shared scratch, which two streams would race on."""
    twin.check()
    parts = [dequantise_twin(*pair) for pair in zip(twin.q, twin.exponents, strict=True)]
    return torch.stack(parts)


def drop_weight(weight: torch.Tensor, twin: Twin) -> torch.Tensor:
    """Stand in for a weight whose twin serves from now on, so that its storage can be freed.

    weight: (N, K) or (groups, N, K), bf16. Gives a view of one element with the shape, dtype and
    device of the weight, strides 0 and a data_ptr of its own; it reads as NaN, so that a reader
    that was forgotten shows. The caller replaces the parameter by it.

    Raises:
        KernelArgumentError: shape, dtype or device, or the twin does not restore the weight bit
            for bit.
    """
    groups, columns, k = twin.shape
    flat = (groups * columns, k)
    require_shape("weight", weight, flat if weight.dim() == 2 else twin.shape)
    require_dtype("weight", weight, torch.bfloat16)
    require_same_device(twin=twin.q, weight=weight)
    restored = restore_weight(twin).reshape(weight.shape)
    if not torch.equal(restored.view(torch.int16), weight.view(torch.int16)):
        raise KernelArgumentError("weight: its twin restores other bits, expected the very weight")
    tag = torch.full((1,), float("nan"), dtype=weight.dtype, device=weight.device)
    return tag.expand(weight.numel()).as_strided(weight.shape, (0,) * weight.dim())


def read_through(
    layer: Callable[[torch.Tensor], torch.Tensor], k: int, *, like: torch.Tensor, rows: int = 256
) -> torch.Tensor:
    """A linear layer's weight as (N, K) bf16, read by feeding it the rows of an identity.

    A lone 1.0 survives any row quantiser exactly, so this is independent of how the layer lays
    out its scales; a weight of -0 reads as +0. like: any tensor on the layer's device. rows: fed
    at once.

    Raises:
        KernelArgumentError: K or rows of 0, or a layer that gives something else than (rows, N)
            values that bf16 holds exactly.
    """
    for name, number in (("K", k), ("rows", rows)):
        if number <= 0:
            raise KernelArgumentError(f"{name} = {number}, expected at least 1")
    parts: list[torch.Tensor] = []
    for start in range(0, k, rows):
        fed = torch.zeros((min(rows, k - start), k), dtype=torch.bfloat16, device=like.device)
        fed[torch.arange(len(fed)), start + torch.arange(len(fed))] = 1.0
        given = layer(fed)
        width = parts[0].shape[1] if parts else None
        require_shape("the layer's result", given, (len(fed), width))
        part = given.to(torch.bfloat16)
        if not torch.equal(part.to(given.dtype), given):
            raise KernelArgumentError(
                "the layer's result holds values beyond bf16, expected a weight read exactly"
            )
        parts.append(part)
    return torch.cat(parts).T.contiguous()
