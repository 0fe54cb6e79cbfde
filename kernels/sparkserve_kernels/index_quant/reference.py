"""Index quantisation in plain torch: the two-stage rule (docs/format/numbers.md).

The format that scorers read:

    payload  (..., 64) uint8   128 e2m1 codes, element 2i in the low nibble of byte i
    scales   (..., 4)  uint8   e8m0, one per 32 elements, within 114..254

so that element i is ``e2m1(payload nibble i) * 2^(scales[i // 32] - 127)``. For queries the
leading axes are (T, 32 heads), for keys (T,). In pages a key is the 68-byte record: a page of P
slots is P * 64 payload bytes, then P * 4 scale bytes; slot s of it has its payload at 64 * s and
its scales at 64 * P + 4 * s. Pages lie ``pages.stride(0)`` bytes apart, which may be more than
68 * P, and slot id n means page n // P, slot n % P.
"""

from __future__ import annotations

import torch

from sparkserve_kernels.numerics.elements import (
    bf16_round,
    e2m1_decode,
    e2m1_encode,
    e2m1_pack,
    e2m1_unpack,
    e8m0_ceil,
    e8m0_decode,
)

WIDTH = 128
"""Elements of an index query or key."""
GROUP = 32
PAYLOAD_BYTES, SCALE_BYTES = WIDTH // 2, WIDTH // GROUP
RECORD_BYTES = PAYLOAD_BYTES + SCALE_BYTES
SCALE_FLOOR = 1e-4
"""The packer's own; its ceiling power of two is 2^-13, byte 114."""


def fake_quant(x: torch.Tensor) -> torch.Tensor:
    """Stage one: round to e2m1 with a scale of its own, back to bf16.

    x: (..., 128), bf16. Gives bf16 of the same shape.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1).clamp(min=6 * 2.0**-126)
    sixth = torch.tensor(1 / 6, dtype=torch.float32, device=x.device)
    scale = e8m0_decode(e8m0_ceil(amax * sixth)).unsqueeze(-1)
    return bf16_round(e2m1_decode(e2m1_encode(groups / scale)) * scale).flatten(-2)


def pack_index(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Stage two: the record of values, scale ``max(amax/6, 1e-4)`` up to a power of two.

    x: (..., 128), bf16 or fp32. Gives payload (..., 64) and scales (..., 4), uint8.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, GROUP))
    floor = torch.tensor(SCALE_FLOOR, dtype=torch.float32, device=x.device)
    scales = e8m0_ceil(torch.maximum(groups.abs().amax(-1) / 6, floor)).clamp(1, 254)
    codes = e2m1_encode(groups / e8m0_decode(scales).unsqueeze(-1))
    return e2m1_pack(codes.flatten(-2)), scales


def index_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both stages; see ``api.index_quant``."""
    return pack_index(fake_quant(x))


def index_quant_to_pages(
    x: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor, page_slots: int
) -> None:
    """Both stages, written as records; see ``api.index_quant_to_pages``."""
    payload, scales = index_quant(x)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, inside = pages[slot // page_slots], slot % page_slots
            base = page_slots * PAYLOAD_BYTES
            page[inside * PAYLOAD_BYTES :][:PAYLOAD_BYTES] = payload[row]
            page[base + inside * SCALE_BYTES :][:SCALE_BYTES] = scales[row]


def index_dequant(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What a scorer multiplies.

    payload: (..., 64), uint8; scales: (..., 4), uint8. Gives fp32 (..., 128), exactly.
    """
    groups = e2m1_decode(e2m1_unpack(payload)).unflatten(-1, (-1, GROUP))
    return (groups * e8m0_decode(scales).unsqueeze(-1)).flatten(-2)
