"""The operation in plain torch."""

from __future__ import annotations

import torch

from sparkserve_kernels.numerics.rules import mxfp8_quantise
from sparkserve_kernels.numerics.scales import swizzle
from sparkserve_kernels.twin_linear.twin import Twin, restore_weight


def exact(x: torch.Tensor, twin: Twin) -> torch.Tensor:
    """The product in float64: (M, groups, N) for x of (M, groups, K)."""
    return torch.einsum("mgk,gnk->mgn", x.double(), restore_weight(twin).double())


def twin_linear(
    x: torch.Tensor, twin: Twin, *, out_dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """See ``api.twin_linear``; computed in float64 and rounded once."""
    rows = x if x.dim() == 3 else x.unsqueeze(1)
    product = exact(rows, twin).to(torch.float32).to(out_dtype)
    return product if x.dim() == 3 else product.squeeze(1)


def twin_linear_mxfp8(x: torch.Tensor, twin: Twin) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``api.twin_linear_mxfp8``."""
    q, scales = mxfp8_quantise(twin_linear(x, twin).flatten(1).to(torch.float32))
    return q, swizzle(scales)
