"""What an Engram layer adds to the residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_rows_apart,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.engram_gate.tiles import Tile, halves, tile_for
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["Images", "engram_gate", "is_supported", "launch"]

RMS_EPS = 1e-20
"""The model's rms_norm_eps."""


class Images(NamedTuple):
    """Which rows are parts of images: they take nothing from the Engram."""

    tokens: torch.Tensor
    """[M] int32 or int64, input id of every row."""
    image_token: int


def is_supported(x: torch.Tensor) -> bool:
    """Whether the kernel runs where this tensor lies."""
    return supports(x)


def engram_gate(
    x: torch.Tensor,
    kv: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    images: Images | None = None,
    *,
    eps: float = RMS_EPS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add each stream's gated Engram value to it, in fp32 with one rounding.

    x: [M, S, H] bf16; the S*H values of a row together, rows may lie apart. M may be 0, H is a
        multiple of 16 from 32 up.
    kv: [M, (S+1)*H] bf16, last axis without gaps: one key per stream, then the value.
    weights: q and k weight, each [S, H] bf16, contiguous.
    images: rows that keep the bits of x; None where the model has no vision.
    out: [M, S, H] bf16, laid out as x; x itself is allowed; None for a new tensor.

    Returns:
        [M, S, H] bf16. A row depends on nothing but itself, and its bits not on M.

    Raises:
        KernelArgumentError: a wrong shape, dtype or layout.
        UnsupportedDevice: no kernel for where x lies.

    Notes:
        A dot of zero counts as positive whatever its sign (gate 0.50025), because the sign of a
        sum of zeros hangs on its order. A stream with NaN in x or key becomes NaN.
    """
    import torch

    if out is None:
        out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    _check(x, kv, weights, out)
    if images is not None:
        require_shape("tokens", images.tokens, (x.shape[0],))
        require_dtype("tokens", images.tokens, torch.int32, torch.int64)
        require_contiguous("tokens", images.tokens)
        require_same_device(x=x, tokens=images.tokens)
    if x.shape[0] == 0:
        return out
    tile = tile_for(target_of(x).family, x.shape[0])
    return launch(x, kv, weights, images, eps=eps, out=out, tile=tile)


def _check(
    x: torch.Tensor, kv: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
) -> None:
    import torch

    require_shape("x", x, (None, None, None))
    rows, streams, hidden = x.shape
    require_multiple("width of x", hidden, 16)
    if hidden < 32:
        raise KernelArgumentError(f"width of x = {hidden}, expected at least 32")
    require_shape("kv", kv, (rows, (streams + 1) * hidden))
    require_shape("out", out, (rows, streams, hidden))
    named = {"x": x, "kv": kv, "q_weight": weights[0], "k_weight": weights[1], "out": out}
    for name, tensor in named.items():
        require_dtype(name, tensor, torch.bfloat16)
        if name.endswith("weight"):
            require_shape(name, tensor, (streams, hidden))
            require_contiguous(name, tensor)
        elif rows:
            require_contiguous(f"row of {name}", tensor[0])
            require_multiple(f"row stride of {name}", tensor.stride(0), 8)
    require_rows_apart("out", out)
    require_same_device(**named)


def launch(
    x: torch.Tensor,
    kv: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    images: Images | None,
    *,
    eps: float,
    out: torch.Tensor,
    tile: Tile,
) -> torch.Tensor:
    """Run the kernel in one tile, without checks."""
    import triton

    from sparkserve_kernels.engram_gate.kernel import gate_kernel

    rows, streams, hidden = x.shape
    head, tail = halves(hidden)
    gate_kernel[(triton.cdiv(rows, tile.rows) * streams,)](
        x,
        kv,
        *weights,
        x if images is None else images.tokens,
        out,
        rows,
        x.stride(0),
        kv.stride(0),
        out.stride(0),
        0 if images is None else images.image_token,
        eps,
        STREAMS=streams,
        HIDDEN=hidden,
        HEAD=head,
        TAIL=tail,
        ROWS=tile.rows,
        IMAGES=images is not None,
        INTERPRETED=target_of(x).interpreted,
        num_warps=tile.warps,
    )
    return out
