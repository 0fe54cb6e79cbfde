"""Route planner: routes sorted by expert, and cut into tiles of one expert each."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _key(ids_ptr, route, live, slots, row_stride, slot_stride, experts):
    """Expert of a route; ``experts`` for an id outside, ``experts + 1`` for a route outside."""
    place = (route // slots).to(tl.int64) * row_stride + (route % slots) * slot_stride
    expert = tl.load(ids_ptr + place, mask=live, other=0)
    expert = tl.where((expert >= 0) & (expert < experts), expert, experts)
    return tl.where(live, expert, experts + 1)


@triton.jit
def plan_pairs(
    block,
    ids_ptr,
    order_ptr,
    tiles_ptr,
    routes,
    experts,
    row_stride,
    slot_stride,
    slots,
    tile,
    BLOCK: tl.constexpr,
):
    """Place BLOCK routes by comparing them with all.

    A tile lies where its first route does, or at the front where one program sees all routes.
    """
    mine = block * BLOCK + tl.arange(0, BLOCK)
    live = mine < routes
    key = _key(ids_ptr, mine, live, slots, row_stride, slot_stride, experts)
    below = tl.zeros((BLOCK,), tl.int32)
    before = tl.zeros((BLOCK,), tl.int32)
    equal = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, routes, BLOCK):
        other = start + tl.arange(0, BLOCK)
        theirs = _key(ids_ptr, other, other < routes, slots, row_stride, slot_stride, experts)
        same = theirs[None, :] == key[:, None]
        below += tl.sum((theirs[None, :] < key[:, None]).to(tl.int32), axis=1)
        equal += tl.sum(same.to(tl.int32), axis=1)
        before += tl.sum((same & (other[None, :] < mine[:, None])).to(tl.int32), axis=1)
    place = below + before
    first = (key < experts) & (before % tile == 0)
    count = tl.where(first, tl.minimum(equal - before, tile), 0)
    tl.store(order_ptr + place, mine, mask=live)
    spot = place
    if routes <= BLOCK:
        # All routes are here: tiles go to the front, so that programs without one start last.
        lower = first[None, :] & (place[None, :] < place[:, None])
        rank = tl.sum(lower.to(tl.int32), axis=1)
        tiles = tl.sum(first.to(tl.int32), axis=0)
        spot = tl.where(first, rank, tiles + place - rank)
    tl.store(tiles_ptr + spot, tl.where(first, key, 0), mask=live)
    tl.store(tiles_ptr + routes + spot, tl.where(first, place, 0), mask=live)
    tl.store(tiles_ptr + 2 * routes + spot, count, mask=live)


@triton.jit
def plan_pairs_kernel(
    ids_ptr,
    order_ptr,
    tiles_ptr,
    routes,
    experts,
    row_stride,
    slot_stride,
    slots,
    tile,
    BLOCK: tl.constexpr,
):
    """The planner alone, for few routes."""
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
        BLOCK,
    )


@triton.jit
def plan_experts_kernel(
    ids_ptr,
    order_ptr,
    tiles_ptr,
    routes,
    experts,
    places,
    row_stride,
    slot_stride,
    slots,
    tile,
    BLOCK: tl.constexpr,
):
    """The planner for many routes: one program per expert, and one for the ids outside.

    A program fills the tile table from its own first place to the next expert's; the last one
    clears what is left of it.
    """
    expert = tl.program_id(0)
    below = tl.zeros((BLOCK,), tl.int32)
    equal = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, routes, BLOCK):
        other = start + tl.arange(0, BLOCK)
        key = _key(ids_ptr, other, other < routes, slots, row_stride, slot_stride, experts)
        below += (key < expert).to(tl.int32)
        equal += (key == expert).to(tl.int32)
    begin = tl.sum(below, axis=0)
    count = tl.sum(equal, axis=0)
    at = begin
    for start in range(0, routes, BLOCK):
        other = start + tl.arange(0, BLOCK)
        key = _key(ids_ptr, other, other < routes, slots, row_stride, slot_stride, experts)
        mine = (key == expert).to(tl.int32)
        tl.store(order_ptr + at + tl.cumsum(mine, axis=0) - mine, other, mask=mine != 0)
        at += tl.sum(mine, axis=0)
    first = begin // tile + expert
    real = expert < experts
    end = tl.where(real, (begin + count) // tile + expert + 1, places)
    for start in range(first, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        done = (place - first) * tile
        left = tl.where(real, tl.minimum(tl.maximum(count - done, 0), tile), 0)
        used = left > 0
        inside = (place < end) & (place < places)
        tl.store(tiles_ptr + place, tl.where(used, expert, 0), mask=inside)
        tl.store(tiles_ptr + places + place, tl.where(used, begin + done, 0), mask=inside)
        tl.store(tiles_ptr + 2 * places + place, left, mask=inside)
