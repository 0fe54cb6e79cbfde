"""Elementary functions of fp32 by a fixed formula, in plain torch.

Ops that must decide alike on every device cannot take exp and log from a library: they differ by
device and version. These are the formulas and constants, the same operations in the same order as
in the kernels (IEEE additions, multiplications and single-rounded x * y + z).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparkserve_kernels.numerics.elements import fp32_from_bits

ROUND = 12582912.0
"""1.5 * 2^23: adding and subtracting it rounds to the nearest integer, even at ties."""
LOG2_E = 1.4426950216293335
LN2_HIGH = 0.6931471824645996
LN2_LOW = -1.9046542121259336e-09
EXP = (
    1.0,
    1.0,
    0.5,
    0.16666576266288757,
    0.04166637361049652,
    0.008363181725144386,
    0.0013941120123490691,
)
"""exp(r) for |r| <= ln(2)/2, by powers of r; error at most 8e-9."""
LOG1P_UNIT = (
    0.9999999403953552,
    -0.4999949336051941,
    0.3331909775733948,
    -0.2484297901391983,
    0.1910599321126938,
    -0.13663214445114136,
    0.07822556048631668,
    -0.029504986479878426,
    0.005232629366219044,
)
"""log(1 + z)/z for 0 <= z <= 1, by powers of z; error at most 6e-8."""
LOG1P_NEAR = (
    1.0,
    -0.5000006556510925,
    0.33333590626716614,
    -0.2499321848154068,
    0.19975914061069489,
    -0.1682431995868683,
    0.14994493126869202,
    -0.12076660990715027,
    0.054111089557409286,
)
"""log(1 + f)/f for -0.25 <= f <= 0.5, by powers of f; error at most 3e-8."""
VANISHES = 87.0
"""exp(-x) is taken as 0 for x above: no subnormal number enters."""


def fma(x: torch.Tensor, y: torch.Tensor | float, z: torch.Tensor | float) -> torch.Tensor:
    """Product and sum of fp32 rounded once; within 2^-53 of a tie twice, as ``kernel.fma`` says."""
    return (x.double() * _wide(y) + _wide(z)).float()


def sqrt(x: torch.Tensor) -> torch.Tensor:
    """Square root of fp32, rounded once; torch's own on a CPU misses the nearest now and then."""
    return torch.sqrt(x.double()).float()


def divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Quotient of fp32, rounded once."""
    return (x.double() / y.double()).float()


def polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Sum of coefficients[i] * x^i by Horner's rule."""
    value: torch.Tensor | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = fma(x, value, coefficient)
    return value if isinstance(value, torch.Tensor) else torch.full_like(x, value)


def exp_of_negative(x: torch.Tensor) -> torch.Tensor:
    """exp(-x) for fp32 x >= 0 within 2^-23 of itself, 0 for x > 87; NaN stays NaN."""
    whole = fma(x, -LOG2_E, ROUND) - ROUND
    rest = fma(whole, -LN2_LOW, fma(whole, -LN2_HIGH, -x))
    exponent = torch.nan_to_num(whole, nan=0.0).clamp(-126.0, 0.0).to(torch.int64)
    value = polynomial(rest, EXP) * fp32_from_bits((exponent + 127) << 23)
    return torch.where(x > VANISHES, 0.0, value)


def sqrt_softplus(s: torch.Tensor) -> torch.Tensor:
    """sqrt(log(1 + exp(s))) of fp32, within 2^-22 of itself for s >= -87, 0 below.

    log(1 + exp(s)) = max(s, 0) + log(1 + exp(-|s|)), which neither overflows nor cancels; beyond
    s = 20 the second term is less than half of the first's last place, so that the value is
    sqrt(s) there without a branch. NaN stays NaN.
    """
    z = exp_of_negative(s.abs())
    positive = torch.where(s > 0.0, s, 0.0)
    return sqrt(positive + z * polynomial(z, LOG1P_UNIT))


def _wide(value: torch.Tensor | float) -> torch.Tensor | float:
    return value.double() if isinstance(value, torch.Tensor) else value
