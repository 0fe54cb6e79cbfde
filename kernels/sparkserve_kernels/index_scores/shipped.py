"""Forms of the score kernels that ship."""

from __future__ import annotations

from sparkserve_kernels.index_scores.kernel import (
    candidate_scores_kernel,
    scores_kernel,
    widen_kernel,
)
from sparkserve_kernels.index_scores.tiles import (
    CANDIDATE_TILES,
    SCAN,
    TILES,
    WIDEN_BLOCK,
    ScoreTile,
)
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

_ROW_POINTERS = {
    "weights": "*fp32",
    "keys": "*u8",
    "key_scales": "*u8",
    "table": "*i32",
    "row_starts": "*i32",
}
_STRIDES = (
    "query_stride",
    "scale_stride",
    "weight_stride",
    "key_stride",
    "key_scale_stride",
    "table_stride",
)
_ALIGNED = ("query_stride", "weight_stride")
"""Strides that are multiples of 16 in every model: bytes of a query, heads."""


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Every tile with pages and with plain records, and the widening of queries."""
    scaled = target.family == "spark"
    forms = [
        _scores(tile, scaled=scaled, paged=paged, ragged=ragged)
        for _, tile in TILES[target.family]
        for paged, ragged in ((False, False), (True, False), (True, True))
    ]
    forms += [_candidates(target, paged=paged) for paged in (False, True)]
    return (*forms, _widen(scaled=scaled))


def _scores(tile: ScoreTile, *, scaled: bool, paged: bool, ragged: bool) -> Shipped:
    integers = (*_STRIDES, "score_stride", "row_begin", "rows", "rows_per_split", "first_key")
    return Shipped(
        label=f"{tile.label} {'pages' if paged else 'records'}{' of several' if ragged else ''}",
        kernel=scores_kernel,
        signature={
            "queries": _wide_type(scaled=scaled) if tile.wide else "*u8",
            "query_scales": "*u8",
            **_ROW_POINTERS,
            "visible": "*i32",
            "scores": "*fp32",
            **dict.fromkeys((*integers, "key_count"), "i32"),
        },
        constants={
            "RAGGED": ragged,
            "PAGED": paged,
            "SLOTS": 64 if paged else 1,
            "WIDE": tile.wide,
            "SCALED": scaled,
            "BT": tile.rows,
            "BK": tile.keys,
            "SCAN": SCAN,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=tile.stages,
        aligned=(*_ALIGNED, *(("key_stride", "key_scale_stride") if paged else ())),
        multiplies=True,
        streams=tile.wide,
        options={"enable_fp_fusion": False},
    )


def _candidates(target: Target, *, paged: bool) -> Shipped:
    tile = CANDIDATE_TILES[target.family]
    counts = ("row_begin", "requests", "block_count", "key_count")
    integers = (*_STRIDES, "block_stride", "score_stride", *counts)
    return Shipped(
        label=f"candidates {tile.keys} keys {'pages' if paged else 'records'}",
        kernel=candidate_scores_kernel,
        signature={
            "queries": "*u8",
            "query_scales": "*u8",
            **_ROW_POINTERS,
            "visible": "*i32",
            "blocks": "*i32",
            "scores": "*fp32",
            **dict.fromkeys(integers, "i32"),
        },
        constants={
            "REQUESTS": 16,
            "PAGED": paged,
            "SLOTS": 64 if paged else 1,
            "SCALED": target.family == "spark",
            "SIZE": 8,
            "BK": tile.keys,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=3,
        aligned=(*_ALIGNED, "block_stride"),
        multiplies=True,
        options={"enable_fp_fusion": False},
    )


def _widen(*, scaled: bool) -> Shipped:
    return Shipped(
        label="widen queries",
        kernel=widen_kernel,
        signature={
            "queries": "*u8",
            "query_scales": "*u8",
            "wide": _wide_type(scaled=scaled),
            **dict.fromkeys(("vectors", "query_stride", "scale_stride"), "i32"),
        },
        constants={"SCALED": scaled, "BLOCK": WIDEN_BLOCK},
        warps=4,
        stages=3,
        aligned=("vectors", "query_stride"),
    )


def _wide_type(*, scaled: bool) -> str:
    return "*fp8e4nv" if scaled else "*bf16"
