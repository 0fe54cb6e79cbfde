"""Forms of the selection kernels that ship; the same for all targets."""

from __future__ import annotations

from sparkserve_kernels.index_topk.kernel import select_kernel, slots_kernel
from sparkserve_kernels.index_topk.tiles import KEYS, KEYS_OF_FEW, SLOTS_WARPS, SelectTile
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Selection of keys from scores, from segments and from candidates; and their slots."""
    kinds = ((0, False), (0, True), (1, False), (1, True), (8, False))
    return (
        *(
            select_form(tile, group=1, listed=listed, carry=carry)
            for tile in (KEYS, KEYS_OF_FEW)
            for listed, carry in kinds
        ),
        _slots(),
    )


def select_form(tile: SelectTile, *, group: int, listed: int, carry: bool) -> Shipped:
    """One form of the selection kernel."""
    kind = {0: f"scores by {group}", 1: "segments", 8: "candidates"}[listed]
    return Shipped(
        label=f"{tile.k} of {kind}, {tile.warps} warps{' carried on' if carry else ''}",
        kernel=select_kernel,
        signature={
            "scores": "*fp32",
            "listed": "*i32",
            "visible": "*i32",
            "work_values": "*fp32",
            "work_positions": "*i32",
            "best_values": "*fp32",
            "best_positions": "*i32",
            **dict.fromkeys(
                ("score_stride", "listed_stride", "first", "columns", "segment"), "i32"
            ),
        },
        constants={
            "K": tile.k,
            "CAPACITY": tile.capacity,
            "CHUNK": tile.chunk,
            "STEP": tile.step,
            "GROUP": group,
            "LISTED": listed,
            "CARRY": carry,
        },
        warps=tile.warps,
        stages=3,
        aligned=("score_stride", "segment"),
        options={"maxnreg": tile.registers},
    )


def _slots() -> Shipped:
    integers = ("position_stride", "token_stride", "row_begin", "requests", "ratio")
    return Shipped(
        label="slots of 512 positions",
        kernel=slots_kernel,
        signature={
            **dict.fromkeys(
                ("positions", "row_starts", "requests_of_pool", "request_to_token", "slots"), "*i32"
            ),
            **dict.fromkeys(integers, "i32"),
        },
        constants={"REQUESTS": 16, "RAGGED": True, "K": 512, "BLOCK": 512},
        warps=SLOTS_WARPS,
        stages=3,
        aligned=("position_stride",),
    )
