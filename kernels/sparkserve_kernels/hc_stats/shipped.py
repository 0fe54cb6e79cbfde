"""The compiled forms of the hyper-connection gates."""

from __future__ import annotations

from typing import get_args

from sparkserve_kernels.hc_stats import kernel
from sparkserve_kernels.hc_stats.api import GROUP, ITERATIONS, SLICE, slices_a_partial
from sparkserve_kernels.hc_stats.tiles import FINISH, TILES, Mode, Tile
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

WIDTH = 20480


def shipped(target: Target) -> tuple[Shipped, ...]:
    """Every tile of both modes, and what adds the partial sums up."""
    modes: tuple[Mode, ...] = get_args(Mode)
    sums = tuple(
        _sums(f"rows<={limit}" if limit else "any rows", mode, tile, cut=cut)
        for mode in modes
        for cut in (False, True)
        for limit, tile in TILES[target.family][mode]
    )
    return (*sums, *(_finish(mode) for mode in modes))


def _sums(name: str, mode: Mode, tile: Tile, *, cut: bool) -> Shipped:
    return Shipped(
        label=f"{mode} {'parts' if cut else 'fn'} {name} {tile.rows} rows a program",
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
            "CUT": cut,
            "INTERPRETED": False,
        },
        warps=tile.warps,
        stages=tile.stages,
        aligned=("x_stride",),
        streams=True,
        options={"enable_fp_fusion": False},
    )


def _finish(mode: Mode) -> Shipped:
    slices = slices_a_partial(mode)
    tile = FINISH[mode]
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
