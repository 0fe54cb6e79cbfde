"""The kernels of the two products where there is no block-scaled matrix instruction (sm_90).

Few routes and many take another way to their products: see ``kernel_products``.

Launched ahead of the kernel before it (AHEAD), a kernel fetches what does not depend on that one
into the L2 and then waits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from sparkserve_kernels.moe_w4a8.kernel import activation, store_planes
from sparkserve_kernels.moe_w4a8.kernel_products import product, product_codes
from sparkserve_kernels.numerics.kernel import e4m3_value, e8m0_value, mxfp8_quantise, to_bf16


@triton.jit
def prefetch(pointers):
    """Ask the L2 for the lines that pointers lie in."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def fc1_codes_kernel(
    q_ptr,
    q_scales_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    out_ptr,
    out_scales_ptr,
    partials_ptr,
    arrivals_ptr,
    places,
    limit,
    K: tl.constexpr,
    INTER: tl.constexpr,
    slots,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    SPLIT: tl.constexpr,
    AHEAD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Up and gate of a tile of routes, the activation, and its rows quantised.

    q: [rows, 2, K/2] e4m3 planes, scales [rows, K/32] fp32; w: [experts, 2*INTER, K/2], up before
    gate. Out, by place in the order of routes: planes [routes, 2, INTER/2] and fp32 scales.

    K is summed in PARTS; with SPLIT a program does one, and the last to arrive adds them in order.
    """
    if AHEAD:
        gdc_wait()
        # Only now: what comes next reads the plan before it waits for this kernel.
        gdc_launch_dependents()
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    if count == 0:
        return
    lane = tl.arange(0, TILE)
    # Few rows: 32 bits hold all that a route or a token is multiplied by.
    place = begin + tl.minimum(lane, count - 1)
    token = tl.load(order_ptr + place) // slots
    column_block = tl.program_id(0) // PARTS if SPLIT else tl.program_id(0)
    # Up and gate of the same columns are one operand, one above the other.
    both = tl.arange(0, 2 * COLUMNS)
    column = column_block * COLUMNS + both % COLUMNS
    row = expert * (2 * INTER) + (both // COLUMNS) * INTER + tl.minimum(column, INTER - 1)
    w_rows, s_rows = w_ptr + row * (K // 2), s_ptr + row * (K // 32)
    q_rows, q_scales = q_ptr + token * K, q_scales_ptr + token * (K // 32)
    acc = tl.zeros((2 * COLUMNS, TILE), tl.float32)
    if SPLIT:
        part = tl.program_id(0) % PARTS
        mine = product_codes(
            part,
            w_rows,
            s_rows,
            q_rows,
            q_scales,
            K,
            2 * COLUMNS,
            TILE,
            DEPTH,
            PARTS,
            STAGES,
            INTERPRETED,
        )
        CELLS: tl.constexpr = 2 * COLUMNS * TILE
        block = slot.to(tl.int64) * (tl.num_programs(0) // PARTS) + column_block
        cell = partials_ptr + block * (PARTS * CELLS) + both[:, None] * TILE + lane[None, :]
        tl.store(cell + part * CELLS, mine)
        # All threads have stored before one of them announces it.
        tl.debug_barrier()
        if tl.atomic_add(arrivals_ptr + block, 1, sem="acq_rel") != PARTS - 1:
            return
        for other in tl.static_range(PARTS):
            acc += tl.load(cell + other * CELLS, cache_modifier=".cg")
        tl.store(arrivals_ptr + block, 0)
    else:
        # The same sums in the same order, one part after the other.
        for part in range(PARTS):
            acc += product_codes(
                part,
                w_rows,
                s_rows,
                q_rows,
                q_scales,
                K,
                2 * COLUMNS,
                TILE,
                DEPTH,
                PARTS,
                STAGES,
                INTERPRETED,
            )
    up, gate = tl.split(tl.permute(tl.reshape(acc, (2, COLUMNS, TILE)), (1, 2, 0)))
    inner = tl.trans(activation(up, gate, limit))
    bits, byte = mxfp8_quantise(inner, TILE, COLUMNS, INTERPRETED)
    half_column = column_block * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    live = (lane < count)[:, None] & (half_column < INTER // 2)[None, :]
    even, odd = tl.split(tl.reshape(bits, (TILE, COLUMNS // 2, 2)))
    out = out_ptr + place[:, None] * INTER + half_column[None, :]
    tl.store(out, even, mask=live)
    tl.store(out + INTER // 2, odd, mask=live)
    group = column_block * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    live = (lane < count)[:, None] & (group < INTER // 32)[None, :]
    out_scales = out_scales_ptr + place[:, None] * (INTER // 32) + group[None, :]
    tl.store(out_scales, e8m0_value(byte), mask=live)


@triton.jit
def fc2_codes_kernel(
    q_ptr,
    q_scales_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    weights_ptr,
    out_ptr,
    places,
    row_stride,
    slot_stride,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    slots,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Down of a tile of routes times the routes' weights, rounded to bf16 into [routes, HIDDEN]."""
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    if count == 0:
        if AHEAD:
            gdc_wait()
        return
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    route = tl.load(order_ptr + place)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = expert * HIDDEN + tl.minimum(column, HIDDEN - 1)
    if AHEAD:
        # Rows of down lie one after the other, so a run of lines holds them all.
        first = w_ptr + (expert * HIDDEN + tl.program_id(0) * COLUMNS) * (K // 2)
        LINES: tl.constexpr = COLUMNS * K // 256
        for line in tl.static_range(0, LINES, 32):
            prefetch(first + tl.minimum(line + tl.arange(0, 32), LINES - 1) * 128)
        gdc_wait()
        gdc_launch_dependents()
    acc = product_codes(
        0,
        w_ptr + row * (K // 2),
        s_ptr + row * (K // 32),
        q_ptr + place * K,
        q_scales_ptr + place * (K // 32),
        K,
        COLUMNS,
        TILE,
        DEPTH,
        1,
        STAGES,
        INTERPRETED,
    )
    at = (route // slots).to(tl.int64) * row_stride + (route % slots) * slot_stride
    weight = tl.load(weights_ptr + at)
    live = (lane < count)[None, :] & (column < HIDDEN)[:, None]
    out = out_ptr + route.to(tl.int64)[None, :] * HIDDEN + column[:, None]
    tl.store(out, to_bf16(acc * weight[None, :]), mask=live)


@triton.jit
def fc1_values_kernel(
    x_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    out_ptr,
    places,
    limit,
    K: tl.constexpr,
    INTER: tl.constexpr,
    slots,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Up and gate of a tile of routes, the activation, and its rows quantised.

    x: [rows, 2, K/2] bf16 planes; w: [experts, 2*INTER, K/2], up before gate. Out, by place in the
    order of routes: the quantised values as bf16 planes [routes, 2, INTER/2].
    """
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    if count == 0:
        return
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    token = (tl.load(order_ptr + place) // slots).to(tl.int64)
    # Up and gate of the same columns are one operand, one above the other.
    both = tl.arange(0, 2 * COLUMNS)
    column = tl.program_id(0) * COLUMNS + both % COLUMNS
    row = expert * (2 * INTER) + (both // COLUMNS) * INTER + tl.minimum(column, INTER - 1)
    acc = product(
        w_ptr + row * (K // 2),
        s_ptr + row * (K // 32),
        x_ptr + token * K,
        K,
        2 * COLUMNS,
        TILE,
        DEPTH,
        STAGES,
        INTERPRETED,
    )
    up, gate = tl.split(tl.permute(tl.reshape(acc, (2, COLUMNS, TILE)), (1, 2, 0)))
    inner = tl.trans(activation(up, gate, limit))
    bits, byte = mxfp8_quantise(inner, TILE, COLUMNS, INTERPRETED)
    values = tl.reshape(e4m3_value(bits), (TILE, COLUMNS // 32, 32)) * e8m0_value(byte)[:, :, None]
    half = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    live = (lane < count)[:, None] & (half < INTER // 2)[None, :]
    out = out_ptr + place[:, None] * INTER + half[None, :]
    store_planes(out, tl.reshape(values, (TILE, COLUMNS)), live, INTER // 2, TILE, COLUMNS)


@triton.jit
def fc2_values_kernel(
    x_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    weights_ptr,
    out_ptr,
    places,
    row_stride,
    slot_stride,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    slots,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Down of a tile of routes times the routes' weights, rounded to bf16 into [routes, HIDDEN]."""
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    if count == 0:
        return
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    route = tl.load(order_ptr + place)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = expert * HIDDEN + tl.minimum(column, HIDDEN - 1)
    acc = product(
        w_ptr + row * (K // 2),
        s_ptr + row * (K // 32),
        x_ptr + place * K,
        K,
        COLUMNS,
        TILE,
        DEPTH,
        STAGES,
        INTERPRETED,
    )
    at = (route // slots).to(tl.int64) * row_stride + (route % slots) * slot_stride
    weight = tl.load(weights_ptr + at)
    live = (lane < count)[None, :] & (column < HIDDEN)[:, None]
    out = out_ptr + route.to(tl.int64)[None, :] * HIDDEN + column[:, None]
    tl.store(out, to_bf16(acc * weight[None, :]), mask=live)
