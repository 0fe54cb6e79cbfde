"""Scale layouts: linear, the 128x4 swizzle, and 32x32 grids (docs/format/numbers.md)."""

from __future__ import annotations

import logging

import torch

from sparkserve_kernels.checks import KernelArgumentError, require_dtype, require_shape
from sparkserve_kernels.numerics.elements import fp32_bits

logger = logging.getLogger(__name__)

BLOCK = 32
"""Rows and columns of one cell of a grid."""
TILE_ROWS, TILE_GROUPS = 128, 4
PAD_E8M0 = 127
"""Pads e8m0 tensors: 1.0. Byte 0 would be 2^-127."""
PAD_GRID = 1.0
"""Pads fp32 grids."""


def swizzled_bytes(rows: int, groups: int) -> int:
    """Bytes that the 128x4 layout takes for this many rows and groups."""
    return -(-rows // TILE_ROWS) * TILE_ROWS * (-(-groups // TILE_GROUPS) * TILE_GROUPS)


def swizzled_offset(row: int, group: int, groups: int) -> int:
    """Byte of (row, group) in the 128x4 layout of a tensor with that many groups a row."""
    tiles = -(-groups // TILE_GROUPS)
    base = (row // TILE_ROWS * tiles + group // TILE_GROUPS) * TILE_ROWS * TILE_GROUPS
    return base + ((row % 32) * 4 + (row // 32) % 4) * 4 + group % TILE_GROUPS


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """Linear scales in the 128x4 layout of cuBLAS and FlashInfer.

    scales: (rows, groups), uint8. Gives (swizzled_bytes(rows, groups),), uint8; rows and groups
    that only pad hold 0. A tile of 128 rows is contiguous: cutting a weight by such tiles cuts
    its scales.
    """
    require_dtype("scales", scales, torch.uint8)
    require_shape("scales", scales, (None, None))
    rows, groups = scales.shape
    tiles, fours = -(-rows // TILE_ROWS), -(-groups // TILE_GROUPS)
    padded = scales.new_zeros(tiles * TILE_ROWS, fours * TILE_GROUPS)
    padded[:rows, :groups] = scales
    cells = padded.view(tiles, 4, 32, fours, 4).permute(0, 3, 2, 1, 4)
    return cells.reshape(-1)


def unswizzle(swizzled: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """Linear scales out of the 128x4 layout, without its padding.

    swizzled: (swizzled_bytes(rows, groups),), uint8. Gives (rows, groups), uint8.

    Raises:
        KernelArgumentError: another number of bytes.
    """
    require_dtype("swizzled", swizzled, torch.uint8)
    require_shape("swizzled", swizzled, (swizzled_bytes(rows, groups),))
    tiles, fours = -(-rows // TILE_ROWS), -(-groups // TILE_GROUPS)
    cells = swizzled.view(tiles, fours, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return cells.reshape(tiles * TILE_ROWS, fours * TILE_GROUPS)[:rows, :groups].contiguous()


def e8m0_from_grid(grid: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Scales per (row, 32 columns) out of a grid with one fp32 power of two per 32x32 block.

    grid: (N/32, K/32), fp32; weight: (N, K), float8_e4m3fn, read only where a scale is bad.
    Gives (N, K/32), uint8.

    Notes:
        A bad scale over a block of zeros (padding of tensor parallelism, whose scales nobody
        initialised) becomes 1.0 and is logged: it multiplies nothing.

    Raises:
        KernelArgumentError: shapes that do not fit, or a scale over non-zero weights that is no
            normal positive power of two (the first such cell is named).
    """
    require_dtype("grid", grid, torch.float32)
    require_shape("grid", grid, (None, None))
    require_dtype("weight", weight, torch.float8_e4m3fn)
    require_shape("weight", weight, (grid.shape[0] * BLOCK, grid.shape[1] * BLOCK))
    bits = fp32_bits(grid)
    exponent = bits >> 23
    bad = ((bits & 0x7FFFFF) != 0) | (exponent < 1) | (exponent > 254)
    if bool(bad.any()):
        codes = weight.view(torch.uint8) & 0x7F
        used = (codes.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)) != 0).any(3).any(1)
        _refuse_first(grid, bad & used)
        logger.warning(
            "scale grid %s: %d bad scales over blocks of zeros became 1.0",
            list(grid.shape),
            int(bad.sum()),
        )
        exponent = torch.where(bad, PAD_E8M0, exponent)
    return exponent.to(torch.uint8).repeat_interleave(BLOCK, dim=0)


def _refuse_first(grid: torch.Tensor, refused: torch.Tensor) -> None:
    cells = refused.nonzero()
    if len(cells):
        row, column = cells[0].tolist()
        raise KernelArgumentError(
            f"scale grid [{row}, {column}] = {float(grid[row, column])!r} over non-zero weights, "
            f"expected a positive power of two ({len(cells)} such cells)"
        )


def pad_e8m0(scales: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """Scales padded at the end to (rows, groups) with byte 127.

    scales: (r, g), uint8. Gives (rows, groups), uint8.

    Raises:
        KernelArgumentError: another dtype, or fewer rows or groups than there are.
    """
    require_dtype("scales", scales, torch.uint8)
    require_shape("scales", scales, (None, None))
    return _padded(scales, rows, groups, PAD_E8M0)


def pad_grid(grid: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """An fp32 grid padded at the end to (rows, columns) with 1.0.

    grid: (r, c), fp32. Gives (rows, columns), fp32.

    Raises:
        KernelArgumentError: another dtype, or fewer rows or columns than there are.
    """
    require_dtype("grid", grid, torch.float32)
    require_shape("grid", grid, (None, None))
    return _padded(grid, rows, columns, PAD_GRID)


def _padded(values: torch.Tensor, rows: int, columns: int, pad: float) -> torch.Tensor:
    if rows < values.shape[0] or columns < values.shape[1]:
        raise KernelArgumentError(
            f"padding shape [{values.shape[0]}, {values.shape[1]}] to [{rows}, {columns}], "
            f"expected at least the former"
        )
    out = values.new_full((rows, columns), pad)
    out[: values.shape[0], : values.shape[1]] = values
    return out
