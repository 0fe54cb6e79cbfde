"""The "fp8 twin" of a bf16 matrix: e4m3 with integer exponents (docs/format/numbers.md)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_dtype,
    require_multiple,
    require_shape,
)
from sparkserve_kernels.numerics.elements import (
    bf16_round,
    e4m3_decode,
    e4m3_encode,
    e8m0_decode,
    fp32_bits,
    fp32_from_bits,
)

COLUMNS = 32
"""Columns that share an exponent."""
_CHUNK_ROWS = 1024
"""Rows worked on at once: the bits of a whole vocabulary as int64 would take gigabytes."""


class Fp8Twin(NamedTuple):
    """A matrix as q * 2^(exponents - 127)."""

    q: torch.Tensor
    """(N, K), float8_e4m3fn."""
    exponents: torch.Tensor
    """(N/block_rows, K/32), uint8 (e8m0): the exponent e is the byte minus 127."""
    exact: bool
    """Whether every element decodes to its very bf16 value."""


def fp8_twin(weight: torch.Tensor, block_rows: int = 32) -> Fp8Twin:
    """Quantise a bf16 matrix to e4m3 with one power-of-two scale per block.

    weight: (N, K), bf16, K a multiple of 32 and N of block_rows. block_rows: 32 for the grid of
    the checkpoint, 1 for an exponent per (row, 32 columns).

    Notes:
        e = clamp(ceil(log2(max(amax, 2^-126) / 448)), -127, 127), taken from the bits of amax:
        a float log2 can miss by one at powers of two. A matrix that came from such blocks is
        exact; a genuine bf16 one is not, and its caller decides (see ``require_exact``). NaN and
        infinities are never exact.

    Raises:
        KernelArgumentError: dtype or shape.
    """
    require_shape("weight", weight, (None, None))
    require_dtype("weight", weight, torch.bfloat16)
    rows, columns = weight.shape
    if block_rows < 1:
        raise KernelArgumentError(f"block_rows = {block_rows}, expected at least 1")
    require_multiple("N", rows, block_rows)
    require_multiple("K", columns, COLUMNS)
    q = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    shape = (rows // block_rows, columns // COLUMNS)
    exponents = torch.empty(shape, dtype=torch.uint8, device=weight.device)
    exact = True
    step = max(_CHUNK_ROWS // block_rows, 1)
    for start in range(0, shape[0], step):
        blocks = slice(start, start + step)
        part = slice(start * block_rows, (start + step) * block_rows)
        q[part], exponents[blocks] = _quantised(weight[part], block_rows)
        back = dequantise_twin(q[part], exponents[blocks])
        exact = exact and bool((back == weight[part]).all())
    return Fp8Twin(q, exponents, exact)


def _quantised(weight: torch.Tensor, block_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = weight.to(torch.float32).unflatten(0, (-1, block_rows)).unflatten(2, (-1, COLUMNS))
    exponent = ceil_log2_of_448ths(blocks.abs().amax((1, 3))).clamp(-127, 127)
    multiplier = fp32_from_bits((127 - exponent) << 23)
    codes = e4m3_encode(blocks * multiplier[:, None, :, None])
    q = codes.reshape(weight.shape).view(torch.float8_e4m3fn)
    return q, (exponent + 127).to(torch.uint8)


def ceil_log2_of_448ths(amax: torch.Tensor) -> torch.Tensor:
    """ceil(log2(max(amax, 2^-126) / 448)) from integer bits.

    amax: any shape, fp32, not negative. Gives int64 of the same shape.
    """
    bits = fp32_bits(amax.clamp(min=2.0**-126))
    # 448 is 1.75 * 2^8: a mantissa above 1.75 needs the next power of two.
    above = (bits & 0x7FFFFF) > 0x600000
    return (bits >> 23) - (127 + 8) + above.to(torch.int64)


def dequantise_twin(q: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """The bf16 matrix of a twin: q * 2^(exponent - 127), rounded once.

    q: (N, K), float8_e4m3fn; exponents: (N/block_rows, K/32), uint8. Gives bf16 (N, K).

    Raises:
        KernelArgumentError: exponents that do not divide the rows, or not one per 32 columns.
    """
    rows, columns = q.shape
    require_shape("exponents", exponents, (None, columns // COLUMNS))
    if rows and not len(exponents):
        raise KernelArgumentError(
            f"exponents: shape {list(exponents.shape)}, expected at least one row for {rows} of q"
        )
    blocks = max(len(exponents), 1)
    require_multiple("N", rows, blocks)
    scale = e8m0_decode(exponents).repeat_interleave(rows // blocks, dim=0)
    groups = e4m3_decode(q).unflatten(1, (-1, COLUMNS))
    return bf16_round(groups * scale.unsqueeze(2)).flatten(1)


def require_exact(name: str, twin: Fp8Twin) -> Fp8Twin:
    """The twin itself, or a refusal.

    Raises:
        KernelArgumentError: the twin is not exact.
    """
    if not twin.exact:
        raise KernelArgumentError(
            f"{name}: its fp8 twin decodes to other bf16 values, expected an exact one (a tensor "
            f"that came from e4m3 blocks)"
        )
    return twin
