"""The compiled forms of block verification."""

from __future__ import annotations

from typing import Any

from sparkserve_kernels.block_verify import kernel
from sparkserve_kernels.block_verify.tiles import TILES
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

VOCABULARY = 129280
DRAFTS = 5
STRIDES = ("target_stride", "target_row", "draft_stride", "draft_row")
BLOCK = {
    "target": "*fp32",
    "draft": "*fp32",
    "tokens": "*i64",
    "live_lengths": "*i64",
    "greedy": "*u8",
}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """The three kernels over the real vocabulary, with and without live lengths and greedy rows."""
    return tuple(form for has in (False, True) for form in _forms(target, has=has))


def _forms(target: Target, *, has: bool) -> tuple[Shipped, ...]:
    tile = TILES[target.family]
    pieces = -(-VOCABULARY // tile.columns)
    parts = -(-VOCABULARY // (4 * tile.counters))
    several = {"PIECES": _power_of_2(pieces), "PARTS": _power_of_2(parts)}
    masses = {"masses": "*fp32", "likeliest": "*i32"}
    race = {"lengths": "*i32", "times": "*fp32", "runners": "*i32"}
    shape = {"vocabulary": "i32", **dict.fromkeys(STRIDES, "i64")}
    noted = {"DRAFTS": DRAFTS, "HAS_LIVE": has, "HAS_GREEDY": has}
    name = f"{VOCABULARY} tokens{' live greedy' if has else ''}"
    return (
        _form(
            f"mass {name}",
            kernel.mass_kernel,
            {**BLOCK, **masses, **shape},
            {**noted, "BLOCK": tile.columns},
            tile.warps,
        ),
        _form(
            f"race {name}",
            kernel.race_kernel,
            {**BLOCK, "noise": "*i64", "masses": "*fp32", **race, **shape, "pieces": "i32"},
            {**noted, "PIECES": several["PIECES"], "BLOCK": tile.counters, "INTERPRETED": False},
            tile.race_warps,
        ),
        _form(
            f"verdict {name}",
            kernel.verdict_kernel,
            {
                **{part: BLOCK[part] for part in ("tokens", "live_lengths", "greedy")},
                **masses,
                **race,
                "corrections": "*i64",
                **dict.fromkeys(("pieces", "parts"), "i32"),
            },
            {**noted, **several},
            1,
        ),
    )


def _form(
    name: str, function: Any, signature: dict[str, str], constants: dict[str, Any], warps: int
) -> Shipped:
    return Shipped(
        label=name,
        kernel=function,
        signature=signature,
        constants=constants,
        warps=warps,
        stages=3,
        aligned=tuple(part for part in ("vocabulary", *STRIDES) if part in signature),
        options={"enable_fp_fusion": False},
    )


def _power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
