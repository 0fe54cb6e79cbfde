"""The compiled forms of the hyper-connection gates."""

from __future__ import annotations

from sparkserve_kernels.hc_stats import kernel
from sparkserve_kernels.hc_stats.api import GROUP, ITERATIONS, SLICE, slices_a_partial
from sparkserve_kernels.hc_stats.tiles import FINISH, TILES, FinishTile, Mode, Tile, Weight
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

WIDTH = 20480


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Every tile of both modes and forms of the weight, and what adds the partial sums up."""
    sums = tuple(
        _sums(f"rows<={limit}" if limit else "any rows", mode, weight, tile)
        for (mode, weight), table in TILES[target.family].items()
        for limit, tile in table
    )
    finish = tuple(_finish(mode, tile) for mode, tiles in FINISH.items() for tile in tiles)
    return (*sums, *finish)


def _sums(name: str, mode: Mode, weight: Weight, tile: Tile) -> Shipped:
    return Shipped(
        label=f"{mode} {weight} {name} {tile.rows} rows a program",
        kernel=kernel.sums_kernel,
        signature={
            "x_ptr": "*bf16",
            "fn_ptr": "*fp32",
            "parts_ptr": "*bf16",
            "sums_ptr": "*fp32",
            "squares_ptr": "*fp32",
            "rows": "i32",
            "x_stride": "i32",
        },
        constants={
            "WIDTH": WIDTH,
            "SLICES": slices_a_partial(mode),
            "PARTIALS": tile.groups,
            "ROWS": tile.rows,
            "STAGES": tile.stages,
            "CUT": weight == "parts",
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=tile.stages,
        aligned=("x_stride",),
        streams=True,
        options={"enable_fp_fusion": False},
    )


def _finish(mode: Mode, tile: FinishTile) -> Shipped:
    slices = slices_a_partial(mode)
    pointers = ("sums", "squares", "scale", "base", "pre", "post", "comb")
    return Shipped(
        label=f"{mode} finish {tile.rows} rows a program",
        kernel=kernel.finish_kernel,
        signature={
            **{f"{name}_ptr": "*fp32" for name in pointers},
            "rows": "i32",
            "rms_eps": "fp32",
            "hc_eps": "fp32",
        },
        constants={
            "WIDTH": WIDTH,
            "PARTIALS": WIDTH // (SLICE * slices),
            "GROUP": GROUP // slices,
            "LOG_GROUPS": 3,
            "ITERATIONS": ITERATIONS,
            "ROWS": tile.rows,
        },
        warps=tile.warps,
        stages=3,
        options={"enable_fp_fusion": False},
    )
