"""The device functions of ``kernel`` in plain torch, under the same names."""

from __future__ import annotations

import torch

from sparkserve_kernels.numerics.elements import (
    bf16_round,
    e2m1_as_e4m3,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    e8m0_decode,
    fp32_from_bits,
)
from sparkserve_kernels.numerics.rules import mxfp8_quantise as _canonical
from sparkserve_kernels.numerics.rules import mxfp8_scales

e4m3_bits = e4m3_encode
e4m3_value = e4m3_decode
e8m0_value = e8m0_decode
e2m1_code = e2m1_encode
e2m1_value = e2m1_decode
e2m1_to_e4m3_bits = e2m1_as_e4m3


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    """fp32 rounded to bf16, nearest even."""
    return bf16_round(x)


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """fp32 rounded to the nearest bf16 value (even at ties), kept as fp32."""
    return bf16_round(x).to(torch.float32)


def mxfp8_scale_byte(amax: torch.Tensor) -> torch.Tensor:
    """e8m0 byte (int32) of the canonical rule for a group's largest magnitude."""
    return mxfp8_scales(amax.unsqueeze(-1)).to(torch.int32)


def mxfp8_multiplier(byte: torch.Tensor) -> torch.Tensor:
    """fp32 2^(127-byte) by which a group is scaled before rounding; 0 for byte 0."""
    wide = byte.to(torch.int64)
    return fp32_from_bits(torch.where(wide == 0, 0, (254 - wide) << 23))


def mxfp8_quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 bits (uint8) and scale bytes of a tile."""
    q, scales = _canonical(x)
    return q.view(torch.uint8), scales
