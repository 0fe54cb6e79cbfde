"""Quantise rows to MXFP8: one pass, every value read once and kept in registers.

The groups of all rows form one list and a program takes a run of it, so that few long rows and
many short ones fill the GPU alike. Moves M*K*(2 or 4) bytes in, M*K*(1 + 1/32) out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkserve_kernels.numerics.kernel import mxfp8_quantise_groups, to_fp32


@triton.jit
def mxfp8_quant_kernel(
    x_ptr,
    q_ptr,
    scales_ptr,
    rows,
    groups,
    out_rows,
    out_groups,
    x_stride,
    SWIZZLED: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """From x [rows, 32*groups] to q (e4m3 bits, contiguous) and its scales.

    The list of groups is out_rows x out_groups: larger than the input where the layout of the
    scales pads, and what only pads gets byte 0.
    """
    # A group's number fits in 32 bits (the host sees to it); 64-bit division is slow.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (at // out_groups).to(tl.int64)
    group = at % out_groups
    real = (row < rows) & (group < groups)
    lane = tl.arange(0, 32)
    source = x_ptr + (row * x_stride + group * 32)[:, None] + lane[None, :]
    x = to_fp32(tl.load(source, mask=real[:, None], other=0.0))
    bits, byte = mxfp8_quantise_groups(x, INTERPRETED)
    target = q_ptr + ((row * groups + group) * 32)[:, None] + lane[None, :]
    tl.store(target, bits, mask=real[:, None])
    place = row * out_groups + group
    if SWIZZLED:
        tile = (row // 128) * (out_groups // 4) + group // 4
        inside = row.to(tl.int32) % 128
        place = tile * 512 + (inside % 32) * 16 + (inside // 32) * 4 + group % 4
    tl.store(scales_ptr + place, byte, mask=row < out_rows)
