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
    """Both layouts and both rules for zero at both numbers of ids; large gathers also sorted."""
    few, many = TILES[target.family]
    return tuple(
        _form(name, tile, packed=packed, ordered=ordered, positive=positive)
        for name, tile, orders in (
            (f"ids<={FEW_IDS}", few, (False,)),
            (f"ids>{FEW_IDS}", many, (False, True)),
        )
        for packed in (False, True)
        for ordered in orders
        for positive in (False, True)
    )


def _form(name: str, tile: Tile, *, packed: bool, ordered: bool, positive: bool) -> Shipped:
    words = (
        "records" if packed else "planes",
        "sorted" if ordered else None,
        "+0" if positive else None,
    )
    return Shipped(
        label=" ".join((name, *filter(None, words), f"{tile.rows}x256")),
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
