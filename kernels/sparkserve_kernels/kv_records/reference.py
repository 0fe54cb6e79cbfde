"""KV records in plain torch, byte by byte (docs/format/numbers.md).

A token is a latent of 512 values, the last 64 with RoPE applied; an index key has 128. Its bytes:

    584      [0,448) e4m3 of the first 448; [448,576) 64 bf16; scales: 7 e8m0 (one per 64), one 0
    432      [0,256) e2m1 of all 512; [256,288) 32 e4m3 scales; [288,304) 0; [304,432) 64 bf16
    528      [0,512) e4m3 of all 512; scales: 16 e8m0 (one per 32)
    288      [0,256) e2m1 of all 512; scales: 32 e4m3 (one per 16)
    index68  [0,64) e2m1 of 128; scales: 4 e8m0 (one per 32)

Two e2m1 codes share a byte, element 2i in the low nibble. Numbers of two bytes are little-endian.
``layouts`` says where in a page data and scales lie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sparkserve_kernels.index_quant.reference import index_dequant, pack_index
from sparkserve_kernels.kv_records.layouts import PageLayout, RecordName
from sparkserve_kernels.numerics.elements import (
    bf16_round,
    e2m1_decode,
    e2m1_encode,
    e2m1_pack,
    e2m1_unpack,
    e4m3_decode,
    e4m3_encode,
    e8m0_decode,
    fp32_from_bits,
)
from sparkserve_kernels.numerics.twins import ceil_log2_of_448ths

WIDTH, NOPE = 512, 448
FP4_GROUP = 16
FP8_GROUPS: dict[RecordName, int] = {"584": 64, "528": 32}


class Latents(NamedTuple):
    """What attention reads of a token; one tensor twice unless the record tells them apart."""

    key: torch.Tensor
    value: torch.Tensor


def fp4_round(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounding of compressed latents: e2m1 with an e4m3 scale per 16 values.

    x: (..., 16n), bf16. Gives codes (..., 16n) and scales (..., n) as e4m3 bytes, both uint8.

    Notes:
        scale = e4m3(clamp(amax * (1/6), 2^-9, 448)), never 0: a group of zeros gets byte 01. What
        the engine of record "432" writes for such a group is not known; the value is 0 anyway.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, FP4_GROUP))
    sixth = torch.tensor(1 / 6, dtype=torch.float32, device=x.device)
    scales = e4m3_encode((groups.abs().amax(-1) * sixth).clamp(2.0**-9, 448.0))
    codes = e2m1_encode(groups / e4m3_decode(scales).unsqueeze(-1))
    return codes.flatten(-2), scales


def fp4_values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bf16 values of ``fp4_round``'s codes and scales; exact."""
    groups = e2m1_decode(codes).unflatten(-1, (-1, FP4_GROUP))
    return bf16_round(groups * e4m3_decode(scales).unsqueeze(-1)).flatten(-2)


def fp8_round(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 with an e8m0 scale per group.

    x: (..., n*group), bf16. Gives codes and scales (..., n), both uint8.

    Notes:
        scale byte = 127 + ceil(log2(amax / 448)), at least 0; 127 for a group of zeros.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, group))
    amax = groups.abs().amax(-1)
    byte = (ceil_log2_of_448ths(amax) + 127).clamp(0, 254)
    byte = torch.where(amax == 0, 127, byte)
    codes = e4m3_encode(groups * fp32_from_bits((254 - byte) << 23).unsqueeze(-1))
    return codes.flatten(-2), byte.to(torch.uint8)


def fp8_values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bf16 values of ``fp8_round``'s codes and scales, rounded once."""
    groups = e4m3_decode(codes).unflatten(-1, (scales.shape[-1], -1))
    return bf16_round(groups * e8m0_decode(scales).unsqueeze(-1)).flatten(-2)


def encode(x: torch.Tensor, name: RecordName) -> tuple[torch.Tensor, torch.Tensor]:
    """The data rows and scale rows of tokens.

    x: (T, 512), or (T, 128) for "index68"; bf16. Gives (T, data bytes) and (T, scale bytes), uint8.
    """
    if name == "index68":
        return pack_index(x)
    rope = x[:, NOPE:].contiguous().view(torch.uint8)
    if name == "584":
        codes, scales = fp8_round(x[:, :NOPE], 64)
        return torch.cat((codes, rope), 1), torch.nn.functional.pad(scales, (0, 1))
    if name == "528":
        return fp8_round(x, 32)
    codes, scales = fp4_round(x)
    if name == "288":
        return e2m1_pack(codes), scales
    parts = (e2m1_pack(codes), scales, scales.new_zeros(len(x), 16), rope)
    return torch.cat(parts, 1), scales[:, :0]


def decode(data: torch.Tensor, scales: torch.Tensor, name: RecordName) -> Latents:
    """What attention reads of data and scale rows; the inverse of ``encode`` up to rounding."""
    if name == "index68":
        values = bf16_round(index_dequant(data, scales))
    elif name == "584":
        rope = data[:, NOPE:].contiguous().view(torch.bfloat16)
        values = torch.cat((fp8_values(data[:, :NOPE], scales[:, :7]), rope), 1)
    elif name == "528":
        values = fp8_values(data, scales)
    elif name == "288":
        values = fp4_values(e2m1_unpack(data), scales)
    else:
        values = fp4_values(e2m1_unpack(data[:, :256]), data[:, 256:288])
        rope = data[:, 304:].contiguous().view(torch.bfloat16)
        return Latents(torch.cat((values[:, :NOPE], rope), 1), values)
    return Latents(values, values)


def kv_pack(x: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor, layout: PageLayout) -> None:
    """Tokens written into their slots; see ``api.kv_pack``."""
    data, scales = encode(x, layout.record.name)
    for row, slot in enumerate(slots.tolist()):
        if 0 <= slot < len(pages) * layout.slots:
            page, inside = pages[slot // layout.slots], slot % layout.slots
            page[layout.data_offset(inside) :][: data.shape[1]] = data[row]
            page[layout.scale_offset(inside) :][: scales.shape[1]] = scales[row]


def kv_unpack(slots: torch.Tensor, pages: torch.Tensor, layout: PageLayout) -> Latents:
    """Tokens read from their slots; see ``api.kv_unpack``."""
    record, flat = layout.record, slots.reshape(-1)
    data = pages.new_zeros(len(flat), record.data_bytes)
    scales = pages.new_zeros(len(flat), record.scale_bytes)
    known = (flat >= 0) & (flat < len(pages) * layout.slots)
    for row, slot in enumerate(flat.tolist()):
        if known[row]:
            page, inside = pages[slot // layout.slots], slot % layout.slots
            data[row] = page[layout.data_offset(inside) :][: record.data_bytes]
            scales[row] = page[layout.scale_offset(inside) :][: record.scale_bytes]
    zero = torch.zeros((), dtype=torch.bfloat16, device=pages.device)
    key, value = (
        torch.where(known.unsqueeze(1), values, zero).reshape(*slots.shape, record.width)
        for values in decode(data, scales, record.name)
    )
    return Latents(key, value)
