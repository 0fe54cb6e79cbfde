"""MXFP8 quantisation of rows in plain torch."""

from __future__ import annotations

from typing import Literal

import torch

from sparkserve_kernels.numerics.rules import mxfp8_quantise
from sparkserve_kernels.numerics.scales import swizzle

Layout = Literal["linear", "128x4"]
"""Of the scales: ``linear`` for our own kernels, ``128x4`` for cuBLAS and FlashInfer."""


def mxfp8_quant(x: torch.Tensor, layout: Layout = "linear") -> tuple[torch.Tensor, torch.Tensor]:
    """The canonical rule on every row; see ``api.mxfp8_quant``."""
    q, scales = mxfp8_quantise(x)
    return q, scales if layout == "linear" else swizzle(scales)
