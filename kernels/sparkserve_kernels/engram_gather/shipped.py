"""The compiled forms of the gather."""

from __future__ import annotations

from sparkserve_kernels.engram_gather.kernel import gather_kernel
from sparkserve_kernels.engram_gather.table import GROUPS, RECORD_BYTES, VALUES
from sparkserve_kernels.engram_gather.tiles import FEW_IDS, TILES, Tile
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

SIGNATURE = {
    "ids": "*i64",
    "places": "*i64",
    "values_address": "i64",
    "scales_address": "i64",
    "out": "*bf16",
    "count": "i32",
    "row_lo": "i64",
    "row_hi": "i64",
}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Both layouts at both numbers of ids, and the sorted form of large gathers."""
    few, many = TILES[target.family]
    return (
        _form(f"ids<={FEW_IDS} planes", few, packed=False, ordered=False, positive=True),
        _form(f"ids<={FEW_IDS} records", few, packed=True, ordered=False, positive=False),
        _form(f"ids>{FEW_IDS} planes", many, packed=False, ordered=False, positive=False),
        _form(f"ids>{FEW_IDS} records", many, packed=True, ordered=False, positive=True),
        _form(f"ids>{FEW_IDS} records sorted", many, packed=True, ordered=True, positive=True),
    )


def _form(name: str, tile: Tile, *, packed: bool, ordered: bool, positive: bool) -> Shipped:
    return Shipped(
        label=f"{name}{' +0' if positive else ''} {tile.rows}x256",
        kernel=gather_kernel,
        signature=SIGNATURE,
        constants={
            "VALUE_STRIDE": RECORD_BYTES if packed else VALUES,
            "SCALE_STRIDE": RECORD_BYTES if packed else GROUPS,
            "ROWS": tile.rows,
            "SORTED": ordered,
            "POSITIVE_ZERO": positive,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=3,
        options={"enable_fp_fusion": False},
    )
