"""Gates and the mixing matrix of the hyper-connection streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_same_device,
    require_shape,
)
from sparkserve_kernels.hc_stats.tiles import (
    FINISH,
    FinishTile,
    Mode,
    Tile,
    Weight,
    finish_for,
    mode_for,
    tile_for,
)
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = [
    "HcStats",
    "Partials",
    "cut_weight",
    "hc_stats",
    "is_supported",
    "launch_finish",
    "launch_sums",
]

STREAMS = 4
OUTPUTS = 24
"""Rows of fn: 4 of pre, 4 of post, 16 of comb."""
SLICE = 256
"""Columns whose products the matrix units add up."""
GROUP = 10
"""Slices added before groups are."""
PARTS = 3
"""bf16 numbers of eight bits that make up an fp32 weight."""
ITERATIONS = 20
RMS_EPS = 1e-20
"""The model's rms_norm_eps."""
HC_EPS = 1e-6
"""The model's hc_eps."""


class HcStats(NamedTuple):
    """What a sublayer does with the streams, all fp32."""

    pre: torch.Tensor
    """[M, 4], weight of each stream in the next sublayer's input."""
    post: torch.Tensor
    """[M, 4], weight of the sublayer's output in each stream."""
    comb: torch.Tensor
    """[M, 4, 4], [.., k, j] is what stream k gives to stream j; columns sum to 1."""


class Partials(NamedTuple):
    """Sums of slices (``splitk``) or of groups of slices (``walk``), P of them, fp32."""

    products: torch.Tensor
    """[P, M, 24], of x * fn."""
    squares: torch.Tensor
    """[P, M], of x^2."""
    width: int
    mode: Mode


def is_supported(residual: torch.Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return supports(residual)


def hc_stats(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    parts: torch.Tensor | None = None,
    mode: Mode | None = None,
    rms_eps: float = RMS_EPS,
    hc_eps: float = HC_EPS,
    rows_hint: int | None = None,
) -> HcStats:
    """Make the gates and the doubly stochastic mixing matrix of every row.

    residual: [M, 4, H] bf16, a row's 4*H values together, rows may lie apart. M may be 0, H is a
        multiple of 64.
    fn: [24, 4*H] fp32, contiguous.
    scale: [3] fp32, of pre, post and comb.
    base: [24] fp32.
    parts: [3, 24, 4*H] bf16 as ``cut_weight(fn)`` makes them, contiguous; fn is then not read. They
        are half as many bytes again and spare the cutting: for the walk. The bits are the same.
    mode: how the sums are spread over programs; None chooses by rows. Both give the same bits.
    rows_hint: rows by which mode and tile are chosen, where ranks share the rows out.

    Returns:
        pre [M, 4], post [M, 4], comb [M, 4, 4], fp32. A row depends on nothing but itself; its
        bits on neither M nor mode.

    Raises:
        KernelArgumentError: a wrong shape, dtype or layout, or an unknown mode.
        UnsupportedDevice: no kernel for where residual lies.

    Notes:
        Hyper-connections: Zhu et al., ICLR 2025; the doubly stochastic matrix: Xie et al.,
        arXiv 2512.24880. Order of the additions: ``kernel``.
    """
    _check(residual, fn, scale, base)
    if parts is not None:
        _check_parts(residual, fn, parts)
    rows = residual.shape[0] if rows_hint is None else rows_hint
    if mode is not None and mode not in FINISH:
        raise KernelArgumentError(f"mode {mode!r}, expected one of {', '.join(FINISH)}")
    out = _outputs(residual)
    if residual.shape[0]:
        family = target_of(residual).family
        chosen = mode or mode_for(family, rows)
        weight: Weight = "fn" if parts is None else "parts"
        tile = tile_for(family, chosen, weight, rows)
        partials = launch_sums(residual, fn, parts, chosen, tile)
        finish = finish_for(chosen, rows)
        launch_finish(partials, (scale, base), out, finish, eps=(rms_eps, hc_eps))
    return out


def cut_weight(fn: torch.Tensor) -> torch.Tensor:
    """Cut weights into three bf16 parts, the largest first, whose sum is the weight.

    fn: [24, 4*H] fp32.

    Returns:
        [3, 24, 4*H] bf16; exact for weights of 2^-109 and more, and for zeros.

    Raises:
        KernelArgumentError: another dtype.
    """
    import torch

    require_dtype("fn", fn, torch.float32)
    parts = []
    rest = fn
    for _ in range(PARTS):
        upper = (rest.view(torch.int32) & -0x10000).view(torch.float32)
        parts.append(upper.bfloat16())
        rest = rest - upper
    return torch.stack(parts)


def _check(
    residual: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor
) -> None:
    import torch

    require_shape("residual", residual, (None, STREAMS, None))
    require_dtype("residual", residual, torch.bfloat16)
    hidden = residual.shape[2]
    require_multiple("width of residual", hidden, SLICE // STREAMS)
    if hidden == 0:
        raise KernelArgumentError(f"width of residual = 0, expected at least {SLICE // STREAMS}")
    if residual.shape[0]:
        require_contiguous("row of residual", residual[0])
        require_multiple("row stride of residual", residual.stride(0), 8)
    named = {"fn": fn, "scale": scale, "base": base}
    shapes = {"fn": (OUTPUTS, STREAMS * hidden), "scale": (3,), "base": (OUTPUTS,)}
    for name, tensor in named.items():
        require_shape(name, tensor, shapes[name])
        require_dtype(name, tensor, torch.float32)
        require_contiguous(name, tensor)
    require_same_device(residual=residual, **named)


def _check_parts(residual: torch.Tensor, fn: torch.Tensor, parts: torch.Tensor) -> None:
    import torch

    require_shape("parts", parts, (PARTS, *fn.shape))
    require_dtype("parts", parts, torch.bfloat16)
    require_contiguous("parts", parts)
    require_same_device(residual=residual, parts=parts)


def _outputs(residual: torch.Tensor) -> HcStats:
    import torch

    rows, device = residual.shape[0], residual.device
    shapes = ((rows, STREAMS), (rows, STREAMS), (rows, STREAMS, STREAMS))
    return HcStats(*(torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes))


def launch_sums(
    residual: torch.Tensor, fn: torch.Tensor, parts: torch.Tensor | None, mode: Mode, tile: Tile
) -> Partials:
    """Run the multiplying kernel in one tile, without checks."""
    import torch
    import triton

    from sparkserve_kernels.hc_stats.kernel import sums_kernel

    rows, width = residual.shape[0], fn.shape[1]
    slices = slices_a_partial(mode)
    count = triton.cdiv(width, SLICE * slices)
    device = residual.device
    products = torch.empty((count, rows, OUTPUTS), dtype=torch.float32, device=device)
    squares = torch.empty((count, rows), dtype=torch.float32, device=device)
    sums_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(count, tile.groups))](
        residual,
        fn,
        residual if parts is None else parts,
        products,
        squares,
        rows,
        residual.stride(0),
        WIDTH=width,
        SLICES=slices,
        PARTIALS=tile.groups,
        ROWS=tile.rows,
        STAGES=tile.stages,
        CUT=parts is not None,
        INTERPRETED=target_of(residual).interpreted,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )
    return Partials(products, squares, width, mode)


def launch_finish(
    partials: Partials,
    scale_and_base: tuple[torch.Tensor, torch.Tensor],
    out: HcStats,
    tile: FinishTile,
    *,
    eps: tuple[float, float] = (RMS_EPS, HC_EPS),
) -> None:
    """Add partial sums up and make the outputs, without checks; eps: of the norm, of the gates."""
    import triton

    from sparkserve_kernels.hc_stats.kernel import finish_kernel

    count, rows, _ = partials.products.shape
    group = GROUP // slices_a_partial(partials.mode)
    finish_kernel[(triton.cdiv(rows, tile.rows),)](
        partials.products,
        partials.squares,
        *scale_and_base,
        *out,
        rows,
        *eps,
        WIDTH=partials.width,
        PARTIALS=count,
        GROUP=group,
        LOG_GROUPS=(triton.cdiv(count, group) - 1).bit_length(),
        ITERATIONS=ITERATIONS,
        ROWS=tile.rows,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )


def slices_a_partial(mode: Mode) -> int:
    """Slices in one partial sum."""
    return GROUP if mode == "walk" else 1
