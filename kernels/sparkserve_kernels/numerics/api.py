"""Public names of the number formats: codecs, rules, scale layouts and twins in plain torch.

Kernels take the device functions of ``kernel`` instead.
"""

from __future__ import annotations

import torch

from sparkserve_kernels import target
from sparkserve_kernels.numerics.elements import (
    bf16_round,
    bf16_truncate,
    e2m1_as_e4m3,
    e2m1_decode,
    e2m1_encode,
    e2m1_pack,
    e2m1_unpack,
    e4m3_decode,
    e4m3_encode,
    e8m0_ceil,
    e8m0_decode,
)
from sparkserve_kernels.numerics.rules import mxfp8_dequantise, mxfp8_quantise, rules_may_differ
from sparkserve_kernels.numerics.scales import (
    e8m0_from_grid,
    pad_e8m0,
    pad_grid,
    swizzle,
    swizzled_bytes,
    swizzled_offset,
    unswizzle,
)
from sparkserve_kernels.numerics.twins import Fp8Twin, dequantise_twin, fp8_twin, require_exact

__all__ = [
    "Fp8Twin",
    "bf16_round",
    "bf16_truncate",
    "dequantise_twin",
    "e2m1_as_e4m3",
    "e2m1_decode",
    "e2m1_encode",
    "e2m1_pack",
    "e2m1_unpack",
    "e4m3_decode",
    "e4m3_encode",
    "e8m0_ceil",
    "e8m0_decode",
    "e8m0_from_grid",
    "fp8_twin",
    "is_supported",
    "mxfp8_dequantise",
    "mxfp8_quantise",
    "pad_e8m0",
    "pad_grid",
    "require_exact",
    "rules_may_differ",
    "swizzle",
    "swizzled_bytes",
    "swizzled_offset",
    "unswizzle",
]


def is_supported(tensor: torch.Tensor) -> bool:
    """Whether the device functions run where this tensor lies; the torch forms run anywhere."""
    return target.supports(tensor)
