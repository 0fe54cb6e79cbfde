"""The hyper-connection gates against float64, and both modes against each other bit for bit."""

import math

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.hc_stats import api, reference
from sparkserve_kernels.hc_stats.api import HC_EPS, HcStats, cut_weight, hc_stats
from sparkserve_kernels.hc_stats.tiles import (
    FINISH,
    FINISH_FEW_ROWS,
    TILES,
    WALK_ROWS,
    FinishTile,
    Tile,
    mode_for,
    tile_for,
)

from tests.kernels.numeric import same_bits

GPU = torch.cuda.is_available()
GPU_ONLY = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU: graphs or real sizes")
MODES = ("splitk", "walk")
HIDDEN = 5120
ALLOWED = 2e-5
"""Of outputs that lie in 0..2: sums of 20,480 products in fp32 leave mixes some 1e-6 off."""
FEW = 128
"""Two slices."""
MANY = 768
"""Twelve slices: two groups, the second of which has two."""


def inputs(rows, hidden, generator, spread=1.0):
    """residual, fn, scale and base, the mixes of about unit size."""

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=generator.device)

    fn = normal(24, 4 * hidden) * (4 * hidden) ** -0.5
    scale = torch.tensor([1.0, 0.7, 1.3], device=generator.device)
    return (normal(rows, 4, hidden) * spread).bfloat16(), fn, scale, normal(24)


def exact(*arguments):
    """The outputs in float64."""
    return reference.hc_stats(*(argument.double() for argument in arguments))


def worst(got, want):
    """Largest difference of any output; NaN if there is one."""
    assert all(value.dtype == torch.float32 for value in got)
    return max(float((a.double() - b).abs().max()) for a, b in zip(got, want, strict=True))


def all_same(one, other):
    return all(same_bits(a, b) for a, b in zip(one, other, strict=True))


def rows_of(stats, rows):
    return HcStats(*(value[rows] for value in stats))


def by_tile(arguments, mode, tile, finish=None, parts=None):
    """The outputs by one tile of whatever family."""
    residual, fn, *gates = arguments
    shapes = ((4,), (4,), (4, 4))
    out = HcStats(*(fn.new_empty(residual.shape[0], *shape) for shape in shapes))
    partials = api.launch_sums(residual, fn, parts, mode, tile)
    api.launch_finish(partials, tuple(gates), out, finish or FINISH[mode][0])
    return out


FINISH_TILES = sorted({tile for pair in FINISH.values() for tile in pair}, key=str)


def tiles_here(mode):
    """Tiles that must agree where this runs: a GPU has its own family, the interpreter all."""
    families = (
        ["hopper" if torch.cuda.get_device_capability()[0] == 9 else "spark"] if GPU else TILES
    )
    tables = [TILES[name][mode, weight] for name in families for weight in ("fn", "parts")]
    return sorted({tile for table in tables for _, tile in table}, key=str)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (5, FEW), (17, 64)])
def test_outputs_equal_float64(rows, hidden, mode, generator):
    arguments = inputs(rows, hidden, generator)
    assert worst(hc_stats(*arguments, mode=mode), exact(*arguments)) < ALLOWED


def test_one_row_of_the_real_width(generator):
    arguments = inputs(1, HIDDEN, generator)
    assert worst(hc_stats(*arguments), exact(*arguments)) < ALLOWED


@pytest.mark.parametrize("mode", MODES)
def test_every_bit_of_a_weight_counts(mode, generator, device):
    """A row with a single 1.0 picks a column of fn out: the parts of a weight lose nothing."""
    _, fn, *_ = inputs(0, FEW, generator)
    fn *= torch.exp2(torch.randint(-60, 60, fn.shape, generator=generator, device=device).float())
    edges = torch.tensor([1 - 2.0**-24, -(1 + 2.0**-23), 2.0**-100 * (2 - 2.0**-23), 0.0, -3e38])
    fn[:5, 77] = edges.to(device)
    columns = [0, 77, 255, 256, 511]
    x = torch.zeros(len(columns), 4 * FEW, dtype=torch.bfloat16, device=device)
    x[range(len(columns)), columns] = 1.0
    tile = tiles_here(mode)[0]
    for parts in (None, cut_weight(fn)):
        partials = api.launch_sums(x.view(-1, 4, FEW), fn, parts, mode, tile)
        assert torch.equal(partials.products.sum(0), fn.T[columns])
        assert torch.equal(partials.squares.sum(0), torch.ones_like(partials.squares[0]))
    assert torch.equal(cut_weight(fn).double().sum(0), fn.double())


def test_gates_of_nothing_worked_out_by_hand(generator, device):
    """Without mixes pre is 1/2 + eps, post is 1, and comb an even spread."""
    residual, fn, _, _ = inputs(2, 64, generator)
    pre, post, comb = hc_stats(
        residual, fn, torch.zeros(3, device=device), torch.zeros(24, device=device)
    )
    assert torch.equal(pre, torch.full_like(pre, 0.5) + HC_EPS)
    assert torch.equal(post, torch.ones_like(post))
    # Each step divides c by 4c + 1e-6, whose fixed point is (1 - 1e-6) / 4.
    torch.testing.assert_close(comb, torch.full_like(comb, (1 - 1e-6) / 4), rtol=2e-7, atol=0)


def test_outputs_stand_where_the_model_looks_for_them(device):
    """Each of the 24 mixes moved alone moves what it belongs to: k is the row of comb."""
    x = torch.zeros(1, 4, 64, dtype=torch.bfloat16, device=device)
    x[0, 0, 0] = 1.0
    zero = torch.zeros(24, device=device)
    for output in range(24):
        fn = torch.zeros(24, 256, device=device)
        fn[output, 0] = 0.25  # times rsqrt(1/256): a mix of 4
        pre, post, comb = hc_stats(x, fn, torch.tensor([0.5, 0.25, 1.0], device=device), zero)
        if output < 4:
            assert int((pre[0] - 0.5).abs().argmax()) == output
            assert float(pre[0, output]) == pytest.approx(1 / (1 + math.exp(-2.0)) + 1e-6, 1e-6)
        elif output < 8:
            assert int((post[0] - 1).abs().argmax()) == output - 4
            assert float(post[0, output - 4]) == pytest.approx(2 / (1 + math.exp(-1.0)), 1e-6)
        else:
            assert int(comb[0].flatten().argmax()) == output - 8
            assert float(comb[0].max()) > 0.5


def test_comb_is_doubly_stochastic(generator):
    comb = hc_stats(*inputs(13, 64, generator)).comb
    assert bool((comb > 0).all())
    torch.testing.assert_close(comb.sum(1), torch.ones_like(comb[:, 0]), rtol=0, atol=3e-6)
    torch.testing.assert_close(comb.sum(2), torch.ones_like(comb[:, 0]), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("rows", "hidden"), [(2, FEW), (17, 64)])
def test_walk_and_splitk_have_the_same_bits(rows, hidden, generator):
    arguments = inputs(rows, hidden, generator)
    assert all_same(hc_stats(*arguments, mode="walk"), hc_stats(*arguments, mode="splitk"))


@pytest.mark.parametrize("mode", MODES)
def test_every_tile_has_the_same_bits(mode, generator):
    arguments = inputs(2, FEW, generator)
    want = hc_stats(*arguments, mode=mode)
    for tile in tiles_here(mode):
        for parts in (None, cut_weight(arguments[1])):
            assert all_same(by_tile(arguments, mode, tile, parts=parts), want), tile


@pytest.mark.parametrize(
    "finish", [*FINISH_TILES, FinishTile(16, 4), FinishTile(8, 2), FinishTile(1, 1)]
)
def test_every_finish_has_the_same_bits(finish, generator):
    arguments = inputs(5, 64, generator)
    assert all_same(
        by_tile(arguments, "splitk", tiles_here("splitk")[0], finish), hc_stats(*arguments)
    )


def test_parts_of_the_weight_stand_for_it(generator):
    residual, fn, *gates = inputs(3, FEW, generator)
    want = hc_stats(residual, fn, *gates)
    unread = torch.full_like(fn, math.nan)
    for mode in MODES:
        got = hc_stats(residual, unread, *gates, parts=cut_weight(fn), mode=mode)
        assert all_same(got, want)


def test_groups_of_a_program_change_nothing(generator):
    arguments = inputs(2, MANY, generator)
    want = hc_stats(*arguments, mode="splitk")
    rows = tiles_here("walk")[0].rows
    for groups in (1, 3):
        got = by_tile(arguments, "walk", Tile(rows, warps=4, stages=2, groups=groups))
        assert all_same(got, want)


@pytest.mark.parametrize("mode", MODES)
def test_rows_depend_on_nothing_but_themselves(mode, generator, device):
    residual, *rest = inputs(5, 64, generator)
    whole = hc_stats(residual, *rest, mode=mode)
    order = torch.randperm(5, generator=generator, device=device)
    assert all_same(hc_stats(residual[order], *rest, mode=mode), rows_of(whole, order))
    for row in (0, 3):
        alone = slice(row, row + 1)
        assert all_same(hc_stats(residual[alone], *rest, mode=mode), rows_of(whole, alone))
    padded = torch.cat([residual, torch.full_like(residual, 7.0)])
    assert all_same(rows_of(hc_stats(padded, *rest, mode=mode), slice(5)), whole)
    assert all_same(hc_stats(residual, *rest, mode=mode), whole)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_breaks_no_other(mode, value, generator):
    residual, *rest = inputs(5, 64, generator)
    whole = hc_stats(residual, *rest, mode=mode)
    residual[2, 1, 3] = value
    got = hc_stats(residual, *rest, mode=mode)
    others = [0, 1, 3, 4]
    assert all_same(rows_of(got, others), rows_of(whole, others))
    assert all(bool(output[2].isnan().all()) for output in got)


def test_tiny_large_and_empty_rows_keep_their_scale(generator):
    """eps is 1e-20: a row of 2^-20 is normed as any other, and one of zeros has no mixes."""
    residual, *rest = inputs(4, 64, generator)
    factors = torch.tensor([2.0**-20, 2.0**20, 1.0, 0.0], device=residual.device)
    residual = residual * factors[:, None, None].bfloat16()
    got = hc_stats(residual, *rest)
    assert worst(got, exact(residual, *rest)) < ALLOWED
    assert worst(rows_of(got, [3]), exact(residual[3:], rest[0] * 0, *rest[1:])) < 1e-6


def test_rows_may_lie_apart(generator):
    residual, *rest = inputs(3, 64, generator)
    wide = torch.full((3, 4 * 64 + 8), math.nan, dtype=torch.bfloat16, device=residual.device)
    wide[:, :256] = residual.flatten(1)
    apart = wide[:, :256].unflatten(1, (4, 64))
    assert all_same(hc_stats(apart, *rest), hc_stats(residual, *rest))


def test_no_rows_give_no_rows(generator):
    got = hc_stats(*inputs(0, 64, generator))
    assert [tuple(value.shape) for value in got] == [(0, 4), (0, 4), (0, 4, 4)]


@pytest.mark.parametrize("mode", MODES)
def test_rows_beyond_two_gib_are_found(mode, generator, device):
    """A row stride whose product with the row passes 2^31."""
    residual, *rest = inputs(3, 64, generator)
    stride = 2**30 + 64
    if GPU:
        base = torch.zeros(2 * stride + 256, dtype=torch.bfloat16, device=device)
    else:
        import numpy as np

        # Pages of calloc that nobody touches take no memory.
        base = torch.from_numpy(np.zeros(2 * stride + 256, np.uint16)).view(torch.bfloat16)
    apart = base.as_strided((3, 4, 64), (stride, 64, 1))
    apart.copy_(residual)
    assert all_same(hc_stats(apart, *rest, mode=mode), hc_stats(residual, *rest, mode=mode))


def test_rows_choose_mode_and_tile():
    for family, tables in TILES.items():
        assert mode_for(family, WALK_ROWS[family] - 1) == "splitk"
        assert mode_for(family, WALK_ROWS[family]) == "walk"
        for (mode, weight), table in tables.items():
            for limit, tile in table:
                assert tile_for(family, mode, weight, limit or 10**6) is tile
                assert tile.rows >= 64 or family != "hopper"


def test_a_hint_chooses_in_the_place_of_rows(generator, monkeypatch):
    arguments = inputs(2, 64, generator)
    seen = []
    launch = api.launch_sums
    monkeypatch.setattr(api, "launch_sums", lambda *a: seen.append(a[3:]) or launch(*a))
    plain = hc_stats(*arguments)
    hinted = hc_stats(*arguments, rows_hint=4096)
    assert [mode for mode, _ in seen] == ["splitk", "walk"]
    assert seen[1][1] in tiles_here("walk")
    assert all_same(plain, hinted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"residual": lambda t: t.float()}, "residual: dtype float32, expected bfloat16"),
        ({"residual": lambda t: t[:, :3]}, r"residual: shape \[3, 3, 64\], expected \[any, 4, any"),
        ({"residual": lambda t: t[..., :32]}, "width of residual = 32, expected a multiple of 64"),
        ({"residual": lambda t: t[..., :0]}, "width of residual = 0, expected at least 64"),
        (
            {"residual": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)},
            r"row of residual: strides \[1, 4\]",
        ),
        ({"fn": lambda t: t[:23]}, r"fn: shape \[23, 256\], expected \[24, 256\]"),
        ({"fn": lambda t: t.bfloat16()}, "fn: dtype bfloat16, expected float32"),
        ({"fn": lambda t: t.T.contiguous().T}, r"fn: strides \[1, 24\]"),
        ({"scale": lambda t: t[:2]}, r"scale: shape \[2\], expected \[3\]"),
        ({"base": lambda t: t.double()}, "base: dtype float64, expected float32"),
        (
            {"parts": lambda _: torch.zeros(2, 24, 256)},
            r"parts: shape \[2, 24, 256\], expected \[3, 24, 256\]",
        ),
        (
            {"parts": lambda _: torch.zeros(3, 24, 256)},
            "parts: dtype float32, expected bfloat16",
        ),
        ({"mode": lambda _: "run"}, "mode 'run', expected one of splitk, walk"),
    ],
)
def test_refusals_name_both_values(change, message, generator):
    names = ("residual", "fn", "scale", "base")
    arguments = {
        **dict(zip(names, inputs(3, 64, generator), strict=True)),
        "mode": None,
        "parts": None,
    }
    for name, how in change.items():
        arguments[name] = how(arguments[name])
    with pytest.raises(KernelArgumentError, match=message):
        hc_stats(**arguments)


def test_support_is_a_question_of_the_device(device):
    assert api.is_supported(torch.zeros(1, device=device))
    assert not api.is_supported(torch.zeros(1, device="meta"))


@GPU_ONLY
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 6, 33, 96, 4096, 4099])
def test_real_sizes_equal_float64(rows, mode, generator):
    residual, *rest = inputs(rows, HIDDEN, generator)
    got = hc_stats(residual, *rest, mode=mode)
    for start in range(0, rows, 512):
        part = slice(start, start + 512)
        assert worst(rows_of(got, part), exact(residual[part], *rest)) < ALLOWED


@GPU_ONLY
def test_no_number_of_rows_and_no_mode_changes_a_bit(generator):
    """Both modes at primes and at every border of the tile tables, against one run of 4,099."""
    residual, *rest = inputs(4099, HIDDEN, generator)
    whole = hc_stats(residual, *rest, mode="splitk")
    parts = cut_weight(rest[0])
    limits = {limit for table in TILES["hopper"].values() for limit, _ in table if limit}
    limits |= {WALK_ROWS["hopper"], FINISH_FEW_ROWS}
    borders = {limit + step for limit in limits for step in (-1, 0, 1)}
    for rows in sorted(borders | {1, 2, 7, 61, 127, 509, 1021, 1531, 2039, 3067, 4091, 4096, 4099}):
        for mode in MODES:
            for cut in (None, parts):
                got = hc_stats(residual[:rows], *rest, parts=cut, mode=mode)
                assert all_same(got, rows_of(whole, slice(rows))), (rows, mode)


@GPU_ONLY
@pytest.mark.parametrize("mode", MODES)
def test_every_tile_has_the_same_bits_at_the_real_width(mode, generator):
    arguments = inputs(300, HIDDEN, generator)
    want = hc_stats(*arguments, mode="splitk")
    for tile in tiles_here(mode):
        for parts in (None, cut_weight(arguments[1])):
            assert all_same(by_tile(arguments, mode, tile, parts=parts), want), tile


@GPU_ONLY
@pytest.mark.parametrize("rows", [6, 600])
def test_a_captured_call_reads_new_rows(rows, generator):
    residual, *rest = inputs(rows, HIDDEN, generator)
    hc_stats(residual, *rest)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hc_stats(residual, *rest)
    for _ in range(3):
        residual.copy_(inputs(rows, HIDDEN, generator)[0])
        graph.replay()
        assert all_same(out, hc_stats(residual, *rest))
