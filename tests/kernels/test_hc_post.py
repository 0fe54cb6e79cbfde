"""The mix of the residual streams, bit for bit against fp32 torch."""

import math

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.hc_post import api, benchmark, reference
from sparkserve_kernels.hc_post.api import hc_post
from sparkserve_kernels.hc_post.tiles import TILES, Tile

from tests.kernels.numeric import same_bits

GPU = torch.cuda.is_available()
GPU_ONLY = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU: graphs or real sizes")


def inputs(rows, hidden, generator):
    """residual, x, post and comb."""

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=generator.device)

    residual, x = normal(rows, 4, hidden).bfloat16(), normal(rows, hidden).bfloat16()
    return residual, x, normal(rows, 4), normal(rows, 4, 4)


def in_order(residual, x, post, comb):
    """Stream after stream in fp32, each product and sum rounded, as the op says."""
    streams = residual.float().unbind(1)
    mixed = []
    for j in range(4):
        total = comb[:, 0, j, None] * streams[0]
        for k in range(1, 4):
            total = total + comb[:, k, j, None] * streams[k]
        mixed.append(post[:, j, None] * x.float() + total)
    return torch.stack(mixed, 1).bfloat16()


@pytest.mark.parametrize(("rows", "hidden"), [(1, 16), (7, 48), (3, 1040), (1, 5120)])
def test_bits_equal_fp32_torch_and_values_float64(rows, hidden, generator):
    arguments = inputs(rows, hidden, generator)
    got = hc_post(*arguments)
    assert same_bits(got, in_order(*arguments))
    residual, x, post, comb = (argument.double() for argument in arguments)
    want = post[:, :, None] * x[:, None] + torch.einsum("mkj,mkh->mjh", comb, residual)
    size = post.abs()[:, :, None] * x.abs()[:, None] + comb.abs().sum(1)[:, :, None] * 8
    assert bool(((got.double() - want).abs() <= want.abs() * 2.0**-8 + size * 1e-6).all())
    assert same_bits(reference.hc_post(*arguments), got)


def test_a_token_worked_out_by_hand(device):
    """comb moves stream k to stream k + 1, and post adds 1, 2, 4 and 8 times x."""
    residual = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device).view(1, 4, 1).expand(1, 4, 16)
    x = torch.full((1, 16), 16.0, dtype=torch.bfloat16, device=device)
    post = torch.tensor([[1.0, 2.0, 4.0, 8.0]], device=device)
    comb = torch.eye(4, device=device).roll(1, 1)[None].contiguous()
    got = hc_post(residual.bfloat16().contiguous(), x, post, comb)
    assert got[0, :, 0].tolist() == [16 + 4, 32 + 1, 64 + 2, 128 + 3]


@pytest.mark.parametrize("tile", {*TILES.values(), Tile(16, 1), Tile(64, 2)})
def test_every_tile_gives_the_same_bits(tile, generator):
    residual, x, *gates = inputs(3, 80, generator)
    got = api.launch(residual, x, tuple(gates), torch.empty_like(residual), tile)
    assert same_bits(got, hc_post(residual, x, *gates))


def test_rows_depend_on_nothing_but_themselves(generator, device):
    arguments = inputs(6, 48, generator)
    arguments[0][4, 2, 3] = float("nan")
    whole = hc_post(*arguments)
    assert whole[4].isnan().sum() == 4
    assert not whole[[0, 1, 2, 3, 5]].isnan().any()
    order = torch.randperm(6, generator=generator, device=device)
    assert same_bits(hc_post(*(argument[order] for argument in arguments)), whole[order])
    for row in range(6):
        alone = (argument[row : row + 1] for argument in arguments)
        assert same_bits(hc_post(*alone), whole[row : row + 1])
    assert same_bits(hc_post(*arguments), whole)


def test_rows_may_lie_apart_and_out_may_be_the_residual(generator):
    residual, x, *gates = inputs(3, 64, generator)
    want = hc_post(residual, x, *gates)
    apart = torch.full((6, 4, 64), 9.0, dtype=torch.bfloat16, device=x.device)
    wide = torch.zeros(3, 72, dtype=torch.bfloat16, device=x.device)
    apart[::2], wide[:, :64] = residual, x
    rows = apart[::2]
    assert hc_post(rows, wide[:, :64], *gates, out=rows) is rows
    assert same_bits(rows, want)
    assert (apart[1::2] == 9).all()


def test_no_rows_give_no_rows(generator):
    assert hc_post(*inputs(0, 64, generator)).shape == (0, 4, 64)


def test_rows_beyond_two_gib_are_found(generator, device):
    """A row stride whose product with the row passes 2^31."""
    residual, *rest = inputs(3, 16, generator)
    stride = 2**30 + 64
    if GPU:
        base = torch.zeros(2 * stride + 64, dtype=torch.bfloat16, device=device)
    else:
        import numpy as np

        # Pages of calloc that nobody touches take no memory.
        base = torch.from_numpy(np.zeros(2 * stride + 64, np.uint16)).view(torch.bfloat16)
    apart = base.as_strided((3, 4, 16), (stride, 16, 1))
    apart.copy_(residual)
    want = hc_post(residual, *rest)
    assert same_bits(hc_post(apart, *rest), want)
    assert same_bits(hc_post(apart, *rest, out=apart), want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"residual": lambda t: t.float()}, "residual: dtype float32, expected bfloat16"),
        ({"residual": lambda t: t[:, :3]}, r"residual: shape \[3, 3, 64\], expected \[any, 4, any"),
        ({"residual": lambda t: t[..., :24]}, "width of residual = 24, expected a multiple of 16"),
        ({"residual": lambda t: t[..., :0]}, "width of residual = 0, expected at least 16"),
        ({"x": lambda t: t[:2]}, r"x: shape \[2, 64\], expected \[3, 64\]"),
        ({"x": lambda t: t.T.contiguous().T}, r"x: strides \[1, 3\]"),
        ({"post": lambda t: t.bfloat16()}, "post: dtype bfloat16, expected float32"),
        ({"comb": lambda t: t.flatten(1)}, r"comb: shape \[3, 16\], expected \[3, 4, 4\]"),
        ({"comb": lambda t: t.mT}, r"comb: strides \[16, 1, 4\]"),
    ],
)
def test_refusals_name_both_values(change, message, generator):
    names = ("residual", "x", "post", "comb")
    arguments = dict(zip(names, inputs(3, 64, generator), strict=True))
    for name, how in change.items():
        arguments[name] = how(arguments[name])
    with pytest.raises(KernelArgumentError, match=message):
        hc_post(**arguments)


def test_rows_to_be_written_must_lie_apart(generator):
    arguments = inputs(3, 64, generator)
    with pytest.raises(KernelArgumentError, match="out: row stride 0, expected at least 256"):
        hc_post(*arguments, out=arguments[0][:1].expand(3, 4, 64))


def test_the_benchmarks_gate_sees_nan_behind_any_row(generator):
    arguments = inputs(700, 16, generator)
    mixed = reference.hc_post(*arguments)
    assert benchmark.largest_error(mixed, *arguments) <= 2.0**-8
    mixed[3, 1, 5] = float("nan")
    assert math.isnan(benchmark.largest_error(mixed, *arguments))


def test_support_is_a_question_of_the_device(device):
    assert api.is_supported(torch.zeros(1, device=device))
    assert not api.is_supported(torch.zeros(1, device="meta"))


@GPU_ONLY
@pytest.mark.parametrize("rows", [6, 513, 4096])
def test_real_sizes_equal_fp32_torch(rows, generator):
    arguments = inputs(rows, 5120, generator)
    assert same_bits(hc_post(*arguments), in_order(*arguments))


@GPU_ONLY
def test_a_captured_call_reads_new_rows(generator):
    arguments = inputs(6, 5120, generator)
    out = hc_post(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hc_post(*arguments, out=out)
    for _ in range(3):
        for old, new in zip(arguments, inputs(6, 5120, generator), strict=True):
            old.copy_(new)
        graph.replay()
        assert same_bits(out, hc_post(*arguments))
