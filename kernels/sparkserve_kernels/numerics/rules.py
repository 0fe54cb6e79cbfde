"""The MXFP8 rule, and those of others it must be told from (docs/format/numbers.md)."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_dtype,
    require_multiple,
    require_shape,
)
from sparkserve_kernels.numerics.elements import (
    e4m3_decode,
    e4m3_encode,
    e8m0_ceil,
    e8m0_decode,
    fp32_bits,
    fp32_from_bits,
)

GROUP = 32
"""Consecutive columns that share a scale."""
INVERSE_E4M3_MAX_BITS = 0x3B124925
"""fp32 bits of 1/448 as the canonical rule has it."""

Rule = Literal["canonical", "b12x", "b12x_rows"]
"""``canonical`` is ours and FlashInfer's. The others are for interoperation and tests only:
``b12x`` knows no subnormal exception, ``b12x_rows`` also writes 127 for an all-zero group."""


def mxfp8_quantise(x: torch.Tensor, rule: Rule = "canonical") -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows in groups of 32 columns, with the least power of two that keeps |q| <= 448.

    x: (..., K), bf16 or fp32, K a multiple of 32. Gives q (..., K) float8_e4m3fn and scales
    (..., K/32) uint8 (e8m0), x being about q * 2^(scale-127).

    Notes:
        A group that is all zero or at most 448 * 2^-127 gets scale 0 and zeros with their signs.
        A NaN becomes NaN and takes no part in its group's scale; an infinity becomes NaN, the
        finite rest of its group zeros, and the scale 254.

    Raises:
        KernelArgumentError: another dtype or rule, or K is no multiple of 32.
    """
    require_dtype("x", x, torch.bfloat16, torch.float32)
    if rule not in get_args(Rule):
        raise KernelArgumentError(f"rule {rule!r}, expected one of {', '.join(get_args(Rule))}")
    require_multiple("K", x.shape[-1], GROUP)
    groups = x.to(torch.float32).unflatten(-1, (-1, GROUP))
    scales = mxfp8_scales(groups, rule)
    wide = scales.to(torch.int64)
    multiplier = fp32_from_bits(torch.where(wide == 0, 0, (254 - wide) << 23))
    if rule == "b12x_rows":
        multiplier = torch.where(groups.abs().amax(-1) == 0, 1.0, multiplier)
    codes = e4m3_encode(groups * multiplier.unsqueeze(-1))
    return codes.flatten(-2).view(torch.float8_e4m3fn), scales


def mxfp8_scales(groups: torch.Tensor, rule: Rule = "canonical") -> torch.Tensor:
    """Scale bytes of groups along the last axis.

    groups: (..., n), fp32. Gives (...), uint8 within 0..254.
    """
    amax = groups.abs().nan_to_num(nan=0.0, posinf=float("inf")).amax(-1)
    constant = torch.tensor(INVERSE_E4M3_MAX_BITS, dtype=torch.int64, device=groups.device)
    n = amax * fp32_from_bits(constant)
    if rule == "canonical":
        return e8m0_ceil(n)
    bits = fp32_bits(n)
    byte = ((bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int64)).clamp(max=254)
    byte = torch.where(n > 0, byte, 127 if rule == "b12x_rows" else 0)
    return byte.to(torch.uint8)


def mxfp8_dequantise(q: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Values of a quantised tensor; exact where the product is a normal fp32.

    q: (..., K), float8_e4m3fn; scales: (..., K/32), uint8. Gives fp32 (..., K).

    Raises:
        KernelArgumentError: K is no multiple of 32, or scales of another shape or dtype.
    """
    require_multiple("K", q.shape[-1], GROUP)
    require_shape("scales", scales, (*q.shape[:-1], q.shape[-1] // GROUP))
    require_dtype("scales", scales, torch.uint8)
    groups = e4m3_decode(q).unflatten(-1, (-1, GROUP))
    return (groups * e8m0_decode(scales).unsqueeze(-1)).flatten(-2)


def rules_may_differ(scales: torch.Tensor) -> bool:
    """Whether any scale byte is 0: all groups on which the rules above differ, all-zero ones too.

    scales: any shape, uint8, of the canonical rule. A path that mixes rules must fall back then.
    Reads the device, so it is no part of a captured graph.
    """
    return bool((scales == 0).any())
