"""The MXFP8 linear layer in plain torch."""

from __future__ import annotations

import torch

from sparkserve_kernels.numerics.elements import bf16_round
from sparkserve_kernels.numerics.rules import mxfp8_dequantise, mxfp8_quantise
from sparkserve_kernels.split_k import SplitWorkspace


def mxfp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    x_scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    rows_hint: int | None = None,
    columns_hint: int | None = None,
    workspace: SplitWorkspace | None = None,
) -> torch.Tensor:
    """Products of the dequantised operands in fp32, rounded to bf16; see ``api.mxfp8_linear``.

    rows_hint, columns_hint, workspace: of no effect here.
    """
    del rows_hint, columns_hint, workspace
    return bf16_round(
        exact(x, weight, weight_scales, x_scales=x_scales, bias=bias, dtype=torch.float32)
    )


def exact(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    x_scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The same without the last rounding.

    Gives (M, N) in dtype. Dequantising is exact; in float64 so is every product.
    """
    if x_scales is None:
        x, x_scales = mxfp8_quantise(x)
    left = mxfp8_dequantise(x, x_scales).to(dtype)
    right = mxfp8_dequantise(weight, weight_scales).to(dtype)
    out = left @ right.T
    return out if bias is None else out + bias.to(dtype)
