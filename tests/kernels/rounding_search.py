"""Nearest-even rounding by search in float64 among all values of a format."""

from __future__ import annotations

import torch


def nearest_even(magnitudes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest values, the even code at ties.

    magnitudes: (n,), float64, not negative; values: (codes,), float64, ascending, by code.
    """
    middles = (values[:-1] + values[1:]) / 2
    code = torch.searchsorted(middles, magnitudes)
    tie = magnitudes == middles[code.clamp(max=len(middles) - 1)]
    return code + (tie & (code % 2 == 1)).long()


def e4m3_values() -> torch.Tensor:
    """Magnitudes of codes 0x00..0x7E, from the definition."""
    code = torch.arange(0x7F)
    exponent, mantissa = code >> 3, (code & 7).double()
    normal = (1 + mantissa / 8) * torch.exp2(exponent.double() - 7)
    return torch.where(exponent == 0, mantissa * 2.0**-9, normal)


def e2m1_values() -> torch.Tensor:
    """Magnitudes of codes 0..7."""
    return torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def bf16_values() -> torch.Tensor:
    """Magnitudes of codes 0x0000..0x7F7F, and 2^128 where infinity begins."""
    code = torch.arange(0x7F81)
    exponent, mantissa = code >> 7, (code & 0x7F).double()
    normal = torch.ldexp(1 + mantissa / 128, exponent - 127)
    return torch.where(exponent == 0, torch.ldexp(mantissa, torch.tensor(-133)), normal)


def hard_fp32(generator: torch.Generator, count: int) -> torch.Tensor:
    """fp32 values of all kinds: random bits, values near each e4m3 and e2m1 tie, and edges.

    Without NaN; subnormals, zeros of both signs and infinities are in it.
    """
    device = generator.device
    bits = torch.randint(-(2**31), 2**31, (count,), generator=generator, device=device)
    anything = bits.to(torch.int32).view(torch.float32)
    usual = torch.randn(count, generator=generator, device=device)
    usual *= torch.exp2(torch.randint(-12, 10, (count,), generator=generator, device=device))
    near = []
    for values in (e4m3_values(), e2m1_values()):
        points = torch.cat((values, (values[:-1] + values[1:]) / 2)).float()
        steps = torch.arange(-3, 4, dtype=torch.int32)
        around = (points.view(torch.int32)[:, None] + steps).flatten().clamp(min=0)
        near.append(around.view(torch.float32))
    edges = [0.0, 448.0, 464.0, 480.0, 500.0, 6.0, 7.0, float("inf"), 3.4028234e38, 1e-45, 1e-40]
    exact = torch.cat((*near, torch.tensor(edges))).to(device)
    x = torch.cat((anything, usual, exact, -exact))
    return x[~torch.isnan(x)]
