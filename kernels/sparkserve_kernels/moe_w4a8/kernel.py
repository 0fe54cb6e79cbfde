"""Quantising prologue, the Spark's two products, and the ordered sum.

A call is four launches: the prologue (routes sorted by expert, and x quantised), up/gate with the
activation between the products, down with the route's weight, and a sum over each token's slots.
Every route has one producer, so no result depends on the order in which programs run.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from sparkserve_kernels.moe_w4a8.kernel_plan import plan_pairs
from sparkserve_kernels.numerics.kernel import (
    e2m1_to_e4m3_bits,
    e4m3_value,
    e8m0_value,
    mxfp8_quantise,
    mxfp8_quantise_groups,
    to_bf16,
    to_fp32,
)


@triton.jit
def store_planes(out_ptr, values, mask, PLANE, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store bf16 values [ROWS, COLUMNS], the even columns at out_ptr and the odd ones PLANE on.

    out_ptr: [ROWS, COLUMNS/2] pointers; mask likewise. A nibble's neighbour is its odd column, so
    the products read both planes without shuffling.
    """
    even, odd = tl.split(tl.reshape(values, (ROWS, COLUMNS // 2, 2)))
    tl.store(out_ptr, to_bf16(even), mask=mask)
    tl.store(out_ptr + PLANE, to_bf16(odd), mask=mask)


@triton.jit
def prologue_kernel(
    x_ptr,
    x_scales_ptr,
    q_ptr,
    q_scales_ptr,
    ids_ptr,
    order_ptr,
    tiles_ptr,
    rows,
    x_stride,
    x_scales_stride,
    routes,
    experts,
    row_stride,
    slot_stride,
    planners,
    HIDDEN: tl.constexpr,
    slots,
    tile,
    PLAN_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    QUANTISED: tl.constexpr,
    CODES: tl.constexpr,
    VALUES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """The first ``planners`` programs sort the routes, the others quantise BLOCK groups each.

    x: [rows, HIDDEN] bf16, or e4m3 bits with scales where QUANTISED. Out: e4m3 bits and scales
    (both contiguous); with CODES the bits as planes [rows, 2, HIDDEN/2] and fp32 scales; with
    VALUES bf16 values as planes.
    """
    if tl.program_id(0) < planners:
        plan_pairs(
            tl.program_id(0),
            ids_ptr,
            order_ptr,
            tiles_ptr,
            routes,
            experts,
            row_stride,
            slot_stride,
            slots,
            tile,
            PLAN_BLOCK,
        )
    else:
        GROUPS: tl.constexpr = HIDDEN // 32
        at = (tl.program_id(0) - planners) * BLOCK + tl.arange(0, BLOCK)
        row = (at // GROUPS).to(tl.int64)
        group = at % GROUPS
        live = row < rows
        source = x_ptr + (row * x_stride + group * 32)[:, None] + tl.arange(0, 32)[None, :]
        if QUANTISED:
            bits = tl.load(source, mask=live[:, None], other=0)
            byte = tl.load(x_scales_ptr + row * x_scales_stride + group, mask=live, other=0)
        else:
            x = to_fp32(tl.load(source, mask=live[:, None], other=0.0))
            bits, byte = mxfp8_quantise_groups(x, INTERPRETED)
        if CODES:
            even, odd = tl.split(tl.reshape(bits, (BLOCK, 16, 2)))
            out = q_ptr + (row * HIDDEN + group * 16)[:, None] + tl.arange(0, 16)[None, :]
            tl.store(out, even, mask=live[:, None])
            tl.store(out + HIDDEN // 2, odd, mask=live[:, None])
            tl.store(q_scales_ptr + row * GROUPS + group, e8m0_value(byte), mask=live)
        elif VALUES:
            values = e4m3_value(bits) * e8m0_value(byte)[:, None]
            out = q_ptr + (row * HIDDEN + group * 16)[:, None] + tl.arange(0, 16)[None, :]
            store_planes(out, values, live[:, None], HIDDEN // 2, BLOCK, 32)
        else:
            out = q_ptr + (row * HIDDEN + group * 32)[:, None] + tl.arange(0, 32)[None, :]
            tl.store(out, bits, mask=live[:, None])
            tl.store(q_scales_ptr + row * GROUPS + group, byte, mask=live)


@triton.jit
def activation(up, gate, limit):
    """min(gate, limit) * sigmoid of it * clamp(up, -limit, limit); a NaN stays one."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _decoded(packed, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """Packed e2m1 [COLUMNS, DEPTH/2] as e4m3 [DEPTH, COLUMNS]."""
    low, high = e2m1_to_e4m3_bits(packed & 15), e2m1_to_e4m3_bits(packed >> 4)
    bits = tl.reshape(tl.join(low, high), (COLUMNS, DEPTH))
    return tl.trans(bits.to(tl.float8e4nv, bitcast=True))


@triton.jit
def _step(weight, scale, k, K: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """One K step of a weight: e4m3 [DEPTH, COLUMNS] and its scale bytes [COLUMNS, DEPTH/32].

    weight, scale: [COLUMNS] pointers to the rows. Past K: zeros.
    """
    byte = k // 2 + tl.arange(0, DEPTH // 2)
    group = k // 32 + tl.arange(0, DEPTH // 32)
    if K % DEPTH == 0:
        packed = tl.load(weight[:, None] + byte[None, :])
        scales = tl.load(scale[:, None] + group[None, :])
    else:
        packed = tl.load(weight[:, None] + byte[None, :], mask=(byte < K // 2)[None, :], other=0)
        scales = tl.load(
            scale[:, None] + group[None, :], mask=(group < K // 32)[None, :], other=127
        )
    return _decoded(packed, COLUMNS, DEPTH), scales


@triton.jit
def _rows_step(values, scale, k, K: tl.constexpr, DEPTH: tl.constexpr):
    """One K step of quantised rows: e4m3 [TILE, DEPTH] and scale bytes [TILE, DEPTH/32]."""
    at = k + tl.arange(0, DEPTH)
    group = k // 32 + tl.arange(0, DEPTH // 32)
    if K % DEPTH == 0:
        bits = tl.load(values[:, None] + at[None, :])
        scales = tl.load(scale[:, None] + group[None, :])
    else:
        bits = tl.load(values[:, None] + at[None, :], mask=(at < K)[None, :], other=0)
        scales = tl.load(
            scale[:, None] + group[None, :], mask=(group < K // 32)[None, :], other=127
        )
    return bits.to(tl.float8e4nv, bitcast=True), scales


@triton.jit
def fc1_scaled_kernel(
    q_ptr,
    q_scales_ptr,
    order_ptr,
    tiles_ptr,
    w_ptr,
    s_ptr,
    out_ptr,
    out_scales_ptr,
    places,
    limit,
    K: tl.constexpr,
    INTER: tl.constexpr,
    slots,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Up and gate of a tile of routes, the activation, and its rows quantised.

    q: [rows, K] e4m3 bits; w: [experts, 2*INTER, K/2], up before gate. Out, by place in the order
    of routes: [routes, INTER] e4m3 bits and [routes, INTER/32].
    """
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    if count == 0:
        return
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    token = (tl.load(order_ptr + place) // slots).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    up_row = expert * (2 * INTER) + tl.minimum(column, INTER - 1)
    gate_row = up_row + INTER
    up = tl.zeros((TILE, COLUMNS), tl.float32)
    gate = tl.zeros((TILE, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        a, sa = _rows_step(q_ptr + token * K, q_scales_ptr + token * (K // 32), k, K, DEPTH)
        w, sw = _step(w_ptr + up_row * (K // 2), s_ptr + up_row * (K // 32), k, K, COLUMNS, DEPTH)
        up = tl.dot_scaled(a, sa, "e4m3", w, sw, "e4m3", up)
        w, sw = _step(
            w_ptr + gate_row * (K // 2), s_ptr + gate_row * (K // 32), k, K, COLUMNS, DEPTH
        )
        gate = tl.dot_scaled(a, sa, "e4m3", w, sw, "e4m3", gate)
    bits, byte = mxfp8_quantise(activation(up, gate, limit), TILE, COLUMNS, INTERPRETED)
    live = (lane < count)[:, None] & (column < INTER)[None, :]
    tl.store(out_ptr + place[:, None] * INTER + column[None, :], bits, mask=live)
    group = tl.program_id(0) * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    live = (lane < count)[:, None] & (group < INTER // 32)[None, :]
    tl.store(out_scales_ptr + place[:, None] * (INTER // 32) + group[None, :], byte, mask=live)


@triton.jit
def fc2_scaled_kernel(
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
    INTERPRETED: tl.constexpr,
):
    """Down of a tile of routes times the routes' weights, rounded to bf16 into [routes, HIDDEN]."""
    slot = tl.program_id(1)
    count = tl.load(tiles_ptr + 2 * places + slot)
    if count == 0:
        return
    expert = tl.load(tiles_ptr + slot).to(tl.int64)
    begin = tl.load(tiles_ptr + places + slot)
    lane = tl.arange(0, TILE)
    place = (begin + tl.minimum(lane, count - 1)).to(tl.int64)
    route = tl.load(order_ptr + place)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = expert * HIDDEN + tl.minimum(column, HIDDEN - 1)
    down = tl.zeros((TILE, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        a, sa = _rows_step(q_ptr + place * K, q_scales_ptr + place * (K // 32), k, K, DEPTH)
        w, sw = _step(w_ptr + row * (K // 2), s_ptr + row * (K // 32), k, K, COLUMNS, DEPTH)
        down = tl.dot_scaled(a, sa, "e4m3", w, sw, "e4m3", down)
    at = (route // slots).to(tl.int64) * row_stride + (route % slots) * slot_stride
    weight = tl.load(weights_ptr + at)
    live = (lane < count)[:, None] & (column < HIDDEN)[None, :]
    out = out_ptr + route.to(tl.int64)[:, None] * HIDDEN + column[None, :]
    tl.store(out, to_bf16(down * weight[:, None]), mask=live)


@triton.jit
def reduce_kernel(
    routes_ptr,
    ids_ptr,
    out_ptr,
    experts,
    row_stride,
    slot_stride,
    out_stride,
    HIDDEN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Sum a token's slots in order in fp32; a slot whose id lies outside counts as zero."""
    if AHEAD:
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(SLOTS):
        expert = tl.load(ids_ptr + token * row_stride + slot * slot_stride)
        live = (expert >= 0) & (expert < experts) & (column < HIDDEN)
        source = routes_ptr + (token * SLOTS + slot) * HIDDEN + column
        total += to_fp32(tl.load(source, mask=live, other=0.0))
    tl.store(out_ptr + token * out_stride + column, to_bf16(total), mask=column < HIDDEN)
