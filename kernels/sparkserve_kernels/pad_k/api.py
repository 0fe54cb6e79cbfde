"""Public functions of padding along K."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_dtype,
    require_multiple,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.numerics.elements import fp32_bits
from sparkserve_kernels.numerics.rules import GROUP
from sparkserve_kernels.numerics.scales import BLOCK, pad_grid

MULTIPLE = 128
"""What b12x asks of K."""
BUFFER_ROWS = 256
"""Rows of a persistent activation buffer: more than any decode step has."""


class PaddedWeight(NamedTuple):
    """A weight whose last columns are zeros."""

    weight: torch.Tensor
    """(N, K'), float8_e4m3fn, contiguous."""
    grid: torch.Tensor
    """(N/32, K'/32), fp32: 1.0 over what was added."""


def is_supported(x: torch.Tensor) -> bool:
    """Whether padding runs where this tensor lies: anywhere, it is plain torch."""
    return str(x.device.type) != "meta"


def padded_k(k: int, multiple: int = MULTIPLE) -> int:
    """The least multiple that is not below k.

    Raises:
        KernelArgumentError: k or multiple not positive, or not in whole groups of 32.
    """
    for name, value in (("K", k), ("multiple", multiple)):
        require_multiple(name, value, GROUP)
        if value <= 0:
            raise KernelArgumentError(f"{name} = {value}, expected at least {GROUP}")
    return -(-k // multiple) * multiple


def pad_k(weight: torch.Tensor, grid: torch.Tensor, multiple: int = MULTIPLE) -> PaddedWeight:
    """Pad a block-scaled weight along K with zeros, its scale grid with ones.

    weight: (N, K), float8_e4m3fn. N and K are multiples of 32.
    grid: (N/32, K/32), fp32, positive powers of two.
    multiple: of which K' becomes one, itself a multiple of 32.

    Returns:
        Weight and grid of K' columns; the very tensors given where K fits already. With
        ``mxfp8_linear`` and a multiple of 128 the padded layer gives the same bits as the
        unpadded one.

    Raises:
        KernelArgumentError: a wrong shape, dtype or device, or a scale that is no positive power
            of two (the first is named).

    Notes:
        What stands over the padding in the grid multiplies only zeros; 1.0 keeps later conversions
        to e8m0 free of bytes 0 and 255.
    """
    require_shape("weight", weight, (None, None))
    require_dtype("weight", weight, torch.float8_e4m3fn)
    rows, k = weight.shape
    require_multiple("N", rows, BLOCK)
    target = padded_k(k, multiple)
    require_shape("grid", grid, (rows // BLOCK, k // BLOCK))
    require_dtype("grid", grid, torch.float32)
    require_same_device(weight=weight, grid=grid)
    _require_powers_of_two(grid)
    if target == k:
        return PaddedWeight(weight, grid)
    padded = torch.zeros((rows, target), dtype=torch.uint8, device=weight.device)
    padded[:, :k] = weight.view(torch.uint8)
    return PaddedWeight(
        padded.view(torch.float8_e4m3fn), pad_grid(grid, rows // BLOCK, target // BLOCK)
    )


def _require_powers_of_two(grid: torch.Tensor) -> None:
    bits = fp32_bits(grid)
    exponent = bits >> 23
    bad = (((bits & 0x7FFFFF) != 0) | (exponent < 1) | (exponent > 254)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise KernelArgumentError(
            f"grid [{row}, {column}] = {float(grid[row, column])!r}, expected a positive power of "
            f"two ({len(bad)} such cells)"
        )


class PaddedInput:
    """Activations of a padded layer in one buffer whose address never changes.

    A CUDA graph that was captured with it finds it again. Its last columns are zero and stay so.
    One buffer serves calls in the order of one stream.
    """

    def __init__(
        self,
        k: int,
        device: torch.device,
        *,
        multiple: int = MULTIPLE,
        rows: int = BUFFER_ROWS,
    ) -> None:
        """Make the buffer (rows, padded_k(k, multiple)), bf16; none where k fits already."""
        self.k = k
        self.target = padded_k(k, multiple)
        kept = rows if self.target != k else 0
        self.buffer = torch.zeros((kept, self.target), dtype=torch.bfloat16, device=device)

    def fill(self, x: torch.Tensor) -> torch.Tensor:
        """Rows x followed by zeros.

        x: (M, k), bf16, any strides.

        Returns:
            (M, target), bf16: the buffer's first rows, valid until the next call; a new tensor
            for more rows than it has; x itself where nothing is to be padded.

        Raises:
            KernelArgumentError: a wrong shape or device, or a dtype other than bf16: rows that
                are quantised already would need their scales padded too.
        """
        require_shape("x", x, (None, self.k))
        require_dtype("x", x, torch.bfloat16)
        require_same_device(buffer=self.buffer, x=x)
        if self.target == self.k:
            return x
        rows = x.shape[0]
        out = self.buffer[:rows]
        if rows > self.buffer.shape[0]:
            out = x.new_zeros((rows, self.target))
        out[:, : self.k] = x
        return out
