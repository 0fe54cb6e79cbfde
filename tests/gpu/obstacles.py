"""A plugin of the tests: what SGLang 0.5.21 needs to run DeepSeek-V4.1 on Hopper without tilelang.

It acts only where SPARKSERVE_GPU_OBSTACLES=1, and touches neither Engram nor hashing. Together
with SGLANG_DSV4_FP4_DEQUANT=1 it makes the experts fp8, so their numbers are not those of native
MXFP4; both sides of every comparison run with it.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "SPARKSERVE_GPU_OBSTACLES"


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``."""
    if os.environ.get(VARIABLE) == "1":
        take_triton_sinkhorn()
        take_block_size_from_scales()


def take_triton_sinkhorn() -> None:
    """SGLang has a Triton port beside the tilelang kernel, but asks for one AMD chip to take it."""
    from sglang.kernels.ops.layernorm import mhc

    mhc.is_gfx1250_supported = lambda: True


def take_block_size_from_scales() -> None:
    """Dequantised experts have scales per 128 x 128 block, the checkpoint says 32 x 32."""
    from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod

    original = Fp8MoEMethod.get_triton_quant_info

    def with_real_blocks(method: Any, layer: Any) -> Any:
        weight, scale = layer.w13_weight, layer.w13_weight_scale_inv
        method.weight_block_size = [weight.shape[axis] // scale.shape[axis] for axis in (-2, -1)]
        return original(method, layer)

    Fp8MoEMethod.get_triton_quant_info = with_real_blocks
