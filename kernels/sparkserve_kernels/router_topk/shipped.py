"""The compiled forms of the router."""

from __future__ import annotations

from sparkserve_kernels.router_topk.kernel import router_topk_kernel
from sparkserve_kernels.router_topk.tiles import FEW_ROWS, TILES, Tile
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

TARGET = (384, 6)
DRAFT = (128, 3)


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Decode, verify with live rows and prefill of the target, and the draft's router."""
    few, many = TILES[target.family]
    small, large = f"rows<={FEW_ROWS}", f"rows>{FEW_ROWS}"
    return (
        _form(f"{small} 384 top-6", few, TARGET, ()),
        _form(f"{small} 384 top-6 live", few, TARGET, ("LIVE",)),
        _form(f"{small} 384 top-6 image padding", few, TARGET, ("IMAGE", "PADDING")),
        _form(f"{small} 384 top-6 image padding live", few, TARGET, ("IMAGE", "PADDING", "LIVE")),
        _form(f"{small} 128 top-3", few, DRAFT, ()),
        _form(f"{small} 128 top-3 padding", few, DRAFT, ("PADDING",)),
        _form(f"{large} 384 top-6", many, TARGET, ()),
        _form(f"{large} 384 top-6 image padding", many, TARGET, ("IMAGE", "PADDING")),
    )


def _form(name: str, tile: Tile, model: tuple[int, int], has: tuple[str, ...]) -> Shipped:
    experts, chosen = model
    return Shipped(
        label=f"{name} {tile.rows}x{experts}",
        kernel=router_topk_kernel,
        signature={
            **dict.fromkeys(("scores", "bias", "bias_vl", "weights"), "*fp32"),
            "tokens": "*i64",
            "rows_not_padding": "*i32",
            "live_lengths": "*i64",
            "ids": "*i32",
            **dict.fromkeys(("count", "row_stride", "image_token"), "i32"),
            "scale": "fp32",
        },
        constants={
            "EXPERTS": experts,
            "CHOSEN": chosen,
            "REQUEST": 6,
            **{f"HAS_{part}": part in has for part in ("IMAGE", "PADDING", "LIVE")},
            "ROWS": tile.rows,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=3,
        aligned=("row_stride",),
        options={"enable_fp_fusion": False},
    )
