"""Element codecs in plain torch: bf16, e4m3, e8m0 and e2m1 (docs/format/numbers.md).

Integer arithmetic on IEEE bits, so that the same bytes come out on every device and in every
version of torch: the casts of frameworks differ where a value overflows.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes by code; bit 3 is the sign."""
E2M1_AS_E4M3 = (0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C)
"""The e4m3 byte of the same magnitude, by code."""


def fp32_bits(x: torch.Tensor) -> torch.Tensor:
    """Bits of fp32 as int64, so that neither a shift nor a sum meets a sign."""
    return x.to(torch.float32).view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def fp32_from_bits(bits: torch.Tensor) -> torch.Tensor:
    """The fp32 tensor with these bits (int64, 0..2^32-1)."""
    signed = torch.where(bits >= 1 << 31, bits - (1 << 32), bits)
    return signed.to(torch.int32).view(torch.float32)


def bf16_round(x: torch.Tensor) -> torch.Tensor:
    """fp32 rounded to bf16, nearest even.

    x: any shape, fp32. Gives bf16 of the same shape; NaN becomes 0x7FC0.
    """
    bits = fp32_bits(x)
    high = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return _bf16_of(torch.where(torch.isnan(x), 0x7FC0, high))


def bf16_truncate(x: torch.Tensor) -> torch.Tensor:
    """fp32 cut off to bf16: what an interpreter of kernels does where it should round.

    x: any shape, fp32. Gives bf16 of the same shape.
    """
    return _bf16_of(fp32_bits(x) >> 16)


def _bf16_of(high: torch.Tensor) -> torch.Tensor:
    signed = torch.where(high >= 1 << 15, high - (1 << 16), high)
    return signed.to(torch.int16).view(torch.bfloat16)


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """Codes of fp32 rounded to e4m3, nearest even, saturated at 448.

    x: any shape, fp32 (bf16 is widened exactly). Gives uint8 of the same shape; the sign of zero
    stays, NaN becomes 0x7F.
    """
    wide = x.to(torch.float32)
    magnitude = wide.abs().clamp(max=E4M3_MAX)
    bits = fp32_bits(magnitude)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # 2^14 has 2^-9 as its last place: the addition rounds to a multiple of the least subnormal.
    subnormal = fp32_bits(magnitude + 16384.0) & 0xFF
    code = torch.where(magnitude < 2.0**-6, subnormal, normal)
    code = code | ((fp32_bits(wide) >> 24) & 0x80)
    return torch.where(torch.isnan(wide), 0x7F, code).to(torch.uint8)


def e4m3_decode(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values of e4m3 codes.

    codes: any shape, uint8 or float8_e4m3fn. Gives fp32 of the same shape; 0x7F and 0xFF are NaN.
    """
    wide = codes.view(torch.uint8).to(torch.int64)
    magnitude = wide & 0x7F
    normal = fp32_from_bits((magnitude + (120 << 3)) << 20)
    value = torch.where(magnitude < 8, magnitude.to(torch.float32) * 2.0**-9, normal)
    value = torch.where(magnitude == 0x7F, float("nan"), value)
    return torch.where(wide >= 0x80, -value, value)


def e8m0_decode(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values 2^(code-127) of e8m0 bytes.

    codes: any shape, uint8. Gives fp32 of the same shape; byte 0 is 2^-127, 255 is NaN.
    """
    wide = codes.view(torch.uint8).to(torch.int64)
    bits = torch.where(wide == 0, 0x00400000, wide << 23)
    return fp32_from_bits(torch.where(wide == 255, 0x7FC00000, bits))


def e8m0_ceil(x: torch.Tensor) -> torch.Tensor:
    """e8m0 bytes of the least power of two that is not below a positive fp32 value.

    x: any shape, fp32. Gives uint8 of the same shape within 0..254 (255, the NaN, is never
    emitted); values up to 2^-127, zero and NaN among them, give 0.
    """
    bits = fp32_bits(x)
    mantissa = bits & 0x7FFFFF
    exponent = (bits >> 23) & 0xFF
    bump = (mantissa != 0) & ((exponent != 0) | (mantissa > 0x400000))
    byte = (exponent + bump.to(torch.int64)).clamp(max=254)
    return torch.where(x.to(torch.float32) > 0, byte, 0).to(torch.uint8)


def e2m1_encode(x: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 of fp32 rounded to e2m1: ties to the even code, NaN and all above 6 become 6.

    x: any shape, fp32. Gives uint8 of the same shape; the sign stays, zero's too (code 8).
    """
    wide = x.to(torch.float32)
    a = wide.abs().nan_to_num(nan=E2M1_MAX)
    code = (a > 0.25).to(torch.uint8)
    for boundary, tie_goes_up in (
        (0.75, True),
        (1.25, False),
        (1.75, True),
        (2.5, False),
        (3.5, True),
        (5.0, False),
    ):
        code = code + (a >= boundary if tie_goes_up else a > boundary).to(torch.uint8)
    return code | (torch.signbit(wide).to(torch.uint8) << 3)


def e2m1_decode(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values of e2m1 codes.

    codes: any shape, uint8 with a code in the low nibble. Gives fp32 of the same shape.
    """
    table = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], device=codes.device)
    return table[(codes & 15).to(torch.int64)]


def e2m1_as_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """The e4m3 byte of the same value; exact, since every e2m1 value is an e4m3 value.

    codes: any shape, uint8 with a code in the low nibble. Gives uint8 of the same shape.
    """
    table = [*E2M1_AS_E4M3, *(byte | 0x80 for byte in E2M1_AS_E4M3)]
    return torch.tensor(table, dtype=torch.uint8, device=codes.device)[(codes & 15).to(torch.int64)]


def e2m1_pack(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, element 2i in the low nibble.

    codes: (..., 2n), uint8 below 16. Gives (..., n), uint8.
    """
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def e2m1_unpack(packed: torch.Tensor) -> torch.Tensor:
    """Codes out of bytes, the low nibble first.

    packed: (..., n), uint8. Gives (..., 2n), uint8 below 16.
    """
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
