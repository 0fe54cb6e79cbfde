"""Random numbers that every rank computes alike: Philox4x32-10 keyed by a seed, in plain torch.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Words are int64 tensors of
values below 2^32. A call of the op has a number; its counters are (n, 2 * request + use, call's low
word, call's high word) and its key is the seed's low and high word.
"""

from __future__ import annotations

import torch

from sparkserve_kernels.numerics.elementary import (
    LN2_HIGH,
    LOG1P_NEAR,
    fma,
    polynomial,
)
from sparkserve_kernels.numerics.elements import fp32_bits, fp32_from_bits

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
ACCEPT = 0
"""Use of the counters whose first words decide about drafts: n is the draft."""
RACE = 1
"""Use of the counters of the correction: word j of counter n is for token j * quarter + n."""

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """The four words of some counters under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(MULTIPLIERS[0], c0)
        high1, low1 = _product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def words_of(noise: torch.Tensor, requests: int, numbers: int, use: int) -> Words:
    """Words of counters 0 to ``numbers`` - 1 of every request, each [requests, numbers].

    noise: [2] int64, the seed and the call's number.
    """
    seed, call = noise[0], noise[1]
    n = torch.arange(numbers, device=noise.device)[None, :].expand(requests, -1)
    request = torch.arange(requests, device=noise.device)[:, None]
    low, high = call & WORD, (call >> 32) & WORD
    counter = (n, 2 * request + use + 0 * n, low.expand_as(n), high.expand_as(n))
    return philox(counter, (seed & WORD, (seed >> 32) & WORD))


def uniform(words: torch.Tensor) -> torch.Tensor:
    """fp32 in [0, 1): the upper 24 bits over 2^24."""
    return (words >> 8).float() * 2.0**-24


def exponential(words: torch.Tensor) -> torch.Tensor:
    """fp32 above 0 of unit mean: -log(1 - v) with v = (word + 1/2) / 2^32.

    Small values, which win the race, are as fine as v: down to 2^-33.
    """
    v = fma(words.float(), 2.0**-32, 2.0**-33)
    bits = fp32_bits(fma((WORD - words).float(), 2.0**-32, 2.0**-33))
    exponent = (bits - 0x3F400000) >> 23
    mantissa = fp32_from_bits(bits - (exponent << 23))
    near = words < 1 << 30
    f = torch.where(near, -v, mantissa - 1.0)
    exponent = torch.where(near, 0, exponent)
    return -fma(exponent.float(), LN2_HIGH, f * polynomial(f, LOG1P_NEAR))


def race(noise: torch.Tensor, requests: int, vocabulary: int) -> torch.Tensor:
    """Exponential times [requests, vocabulary] fp32 of the correction's draw."""
    quarter = -(-vocabulary // 4)
    words = torch.cat(words_of(noise, requests, quarter, RACE), dim=1)
    return exponential(words[:, :vocabulary])


def _product(constant: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of constant * word, without leaving int64's 63 bits."""
    low_half = (constant & 0xFFFF) * word
    high_half = (constant >> 16) * word + (low_half >> 16)
    return high_half >> 16, ((high_half & 0xFFFF) << 16) | (low_half & 0xFFFF)
