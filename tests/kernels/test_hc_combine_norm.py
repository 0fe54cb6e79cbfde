"""The combined and normed streams against float64, with their two roundings."""

import math

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.hc_combine_norm import api, reference
from sparkserve_kernels.hc_combine_norm.api import RMS_EPS, hc_combine_norm
from sparkserve_kernels.hc_combine_norm.tiles import WARPS, halves

from tests.kernels.numeric import same_bits

GPU = torch.cuda.is_available()
GPU_ONLY = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU: graphs or real sizes")


def inputs(rows, hidden, generator, dtype=torch.bfloat16):
    """residual, pre and the norm's weight."""

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=generator.device)

    return normal(rows, 4, hidden).bfloat16(), normal(rows, 4), normal(hidden).to(dtype)


def combined(residual, pre):
    """Stream after stream in fp32, each product and sum rounded; then bf16."""
    streams = residual.float().unbind(1)
    total = pre[:, 0, None] * streams[0]
    for stream in range(1, 4):
        total = total + pre[:, stream, None] * streams[stream]
    return total.bfloat16()


def assert_rounded_once_more(got, residual, pre, weight, eps=RMS_EPS):
    """bf16 of the float64 norm of the combination, or next to it where fp32's error decides."""
    y = combined(residual, pre).double()
    want = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.double()
    half_a_place = want.abs().clamp(min=2.0**-126).log2().floor().exp2() * 2.0**-8
    assert got.dtype == torch.bfloat16
    assert bool(((got.double() - want).abs() <= half_a_place + 1e-6 * want.abs()).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 32), (7, 48), (3, 1040), (2, 5120)])
def test_it_equals_float64(rows, hidden, dtype, generator):
    arguments = inputs(rows, hidden, generator, dtype)
    assert_rounded_once_more(hc_combine_norm(*arguments), *arguments)


def test_a_row_worked_out_by_hand(device):
    """1/2 * 2 + 2 * 1 - 1 * 3 + 1/4 * 16 = 4 everywhere: normed it is 1, times the weight."""
    values = torch.tensor([2.0, 1.0, 3.0, 16.0], device=device).view(1, 4, 1).expand(1, 4, 32)
    pre = torch.tensor([[0.5, 2.0, -1.0, 0.25]], device=device)
    weight = torch.arange(32, device=device).bfloat16()
    got = hc_combine_norm(values.bfloat16().contiguous(), pre, weight)
    assert same_bits(got, weight[None])


def test_the_combination_is_rounded_before_it_is_normed(device):
    """Bits a and b of y = 1 + 2^-8 (a tie, to 1) and 1 + 3 * 2^-8 (to 1 + 2^-6) decide the norm."""
    residual = torch.zeros(1, 4, 32, dtype=torch.bfloat16, device=device)
    residual[0, 0] = 1.0
    residual[0, 1, :16], residual[0, 1, 16:] = 2.0**-8, 3 * 2.0**-8
    ones = torch.ones(1, 4, device=device)
    got = hc_combine_norm(residual, ones, torch.full((32,), 2.0**8, device=device))
    square = (1 + (1 + 2.0**-6) ** 2) / 2
    want = torch.tensor([2.0**8, 2.0**8 + 4], dtype=torch.float64) / math.sqrt(square)
    assert same_bits(got[0, [0, 16]], want.float().bfloat16())


def test_tiny_large_and_empty_rows_keep_their_scale(generator):
    """eps is 1e-20: a row of 2^-20 is normed as any other, and one of zeros stays so."""
    residual, pre, weight = inputs(4, 64, generator)
    factors = torch.tensor([2.0**-20, 2.0**20, 1.0, 0.0], device=residual.device)
    residual = residual * factors[:, None, None].bfloat16()
    got = hc_combine_norm(residual, pre, weight)
    assert_rounded_once_more(got, residual, pre, weight)
    assert got[0].abs().max() > 0.5
    assert not got[3].any()


def test_the_reference_computes_in_float64(generator):
    residual, pre, weight = inputs(3, 48, generator)
    got = reference.hc_combine_norm(residual.double(), pre.double(), weight.double(), eps=0.5)
    y = torch.einsum("mk,mkh->mh", pre.double(), residual.double())
    want = y / torch.sqrt((y * y).sum(-1, keepdim=True) / 48 + 0.5) * weight.double()
    torch.testing.assert_close(got, want)
    near = reference.hc_combine_norm(residual, pre, weight).double()
    torch.testing.assert_close(
        hc_combine_norm(residual, pre, weight).double(), near, rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("warps", [1, 8])
def test_warps_change_no_more_than_a_place(warps, generator):
    residual, pre, weight = inputs(3, 80, generator)
    out = torch.empty_like(residual[:, 0])
    assert_rounded_once_more(api.launch(residual, pre, weight, out, warps), residual, pre, weight)


def test_rows_depend_on_nothing_but_themselves(generator, device):
    residual, pre, weight = inputs(6, 48, generator)
    residual[4, 2, 3] = math.nan
    whole = hc_combine_norm(residual, pre, weight)
    assert whole[4].isnan().all()
    assert not whole[[0, 1, 2, 3, 5]].isnan().any()
    order = torch.randperm(6, generator=generator, device=device)
    assert same_bits(hc_combine_norm(residual[order], pre[order], weight), whole[order])
    for row in range(6):
        alone = slice(row, row + 1)
        assert same_bits(hc_combine_norm(residual[alone], pre[alone], weight), whole[alone])
    assert same_bits(hc_combine_norm(residual, pre, weight), whole)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter
def test_an_infinite_gate_stays_in_its_row(generator):
    residual, pre, weight = inputs(3, 48, generator)
    want = hc_combine_norm(residual, pre, weight)
    pre[1, 2] = math.inf
    got = hc_combine_norm(residual, pre, weight)
    assert same_bits(got[[0, 2]], want[[0, 2]])
    assert got[1].isnan().all()


def test_rows_may_lie_apart(generator):
    residual, pre, weight = inputs(3, 64, generator)
    apart = torch.full((6, 4, 64), 9.0, dtype=torch.bfloat16, device=pre.device)
    apart[::2] = residual
    wide = torch.full((3, 72), 5.0, dtype=torch.bfloat16, device=pre.device)
    out = wide[:, :64]
    assert hc_combine_norm(apart[::2], pre, weight, out=out) is out
    assert same_bits(out, hc_combine_norm(residual, pre, weight))
    assert (wide[:, 64:] == 5).all()


def test_no_rows_give_no_rows(generator):
    assert hc_combine_norm(*inputs(0, 64, generator)).shape == (0, 64)


def test_rows_beyond_two_gib_are_found(generator, device):
    """A row stride whose product with the row passes 2^31."""
    residual, pre, weight = inputs(3, 32, generator)
    stride = 2**30 + 64
    if GPU:
        base = torch.zeros(2 * stride + 128, dtype=torch.bfloat16, device=device)
    else:
        import numpy as np

        # Pages of calloc that nobody touches take no memory.
        base = torch.from_numpy(np.zeros(2 * stride + 128, np.uint16)).view(torch.bfloat16)
    apart = base.as_strided((3, 4, 32), (stride, 32, 1))
    apart.copy_(residual)
    want = hc_combine_norm(residual, pre, weight)
    assert same_bits(hc_combine_norm(apart, pre, weight), want)
    out = base.as_strided((3, 32), (stride, 1))
    assert same_bits(hc_combine_norm(residual, pre, weight, out=out), want)


@pytest.mark.parametrize("hidden", [32, 33, 48, 64, 80, 5120, 8192])
def test_two_tiles_cover_every_width(hidden):
    head, tail = halves(hidden)
    assert head < hidden <= head + tail
    assert head.bit_count() == tail.bit_count() == 1
    assert halves(5120) == (4096, 1024)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"residual": lambda t: t.float()}, "residual: dtype float32, expected bfloat16"),
        ({"residual": lambda t: t[:, :3]}, r"residual: shape \[3, 3, 64\], expected \[any, 4, any"),
        ({"residual": lambda t: t[..., :40]}, "width of residual = 40, expected a multiple of 16"),
        ({"residual": lambda t: t[..., :16]}, "width of residual = 16, expected at least 32"),
        ({"pre": lambda t: t[:, :3]}, r"pre: shape \[3, 3\], expected \[3, 4\]"),
        ({"pre": lambda t: t.double()}, "pre: dtype float64, expected float32"),
        ({"weight": lambda t: t[:48]}, r"weight: shape \[48\], expected \[64\]"),
        ({"weight": lambda t: t.half()}, "weight: dtype float16, expected bfloat16 or float32"),
        ({"weight": lambda t: t.repeat(2)[::2]}, r"weight: strides \[2\]"),
    ],
)
def test_refusals_name_both_values(change, message, generator):
    names = ("residual", "pre", "weight")
    arguments = dict(zip(names, inputs(3, 64, generator), strict=True))
    for name, how in change.items():
        arguments[name] = how(arguments[name])
    with pytest.raises(KernelArgumentError, match=message):
        hc_combine_norm(**arguments)


def test_rows_to_be_written_must_lie_apart(generator):
    arguments = inputs(3, 64, generator)
    one = torch.empty(1, 64, dtype=torch.bfloat16, device=generator.device)
    with pytest.raises(KernelArgumentError, match="out: row stride 0, expected at least 64"):
        hc_combine_norm(*arguments, out=one.expand(3, 64))


def test_support_is_a_question_of_the_device(device):
    assert api.is_supported(torch.zeros(1, device=device))
    assert not api.is_supported(torch.zeros(1, device="meta"))
    assert set(WARPS) == {"spark", "hopper"}


@GPU_ONLY
@pytest.mark.parametrize("rows", [6, 513, 4096])
def test_real_sizes_equal_float64(rows, generator):
    residual, pre, weight = inputs(rows, 5120, generator)
    got = hc_combine_norm(residual, pre, weight)
    for start in range(0, rows, 512):
        part = slice(start, start + 512)
        assert_rounded_once_more(got[part], residual[part], pre[part], weight)


@GPU_ONLY
def test_no_number_of_rows_changes_a_bit(generator):
    residual, pre, weight = inputs(2000, 5120, generator)
    whole = hc_combine_norm(residual, pre, weight)
    for rows in (1, 6, 96, 511, 513, 1999):
        assert same_bits(hc_combine_norm(residual[:rows], pre[:rows], weight), whole[:rows])


@GPU_ONLY
def test_a_captured_call_reads_new_rows(generator):
    arguments = inputs(6, 5120, generator)
    out = hc_combine_norm(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hc_combine_norm(*arguments, out=out)
    for _ in range(3):
        for old, new in zip(arguments, inputs(6, 5120, generator), strict=True):
            old.copy_(new)
        graph.replay()
        assert same_bits(out, hc_combine_norm(*arguments))
