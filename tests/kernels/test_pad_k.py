import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.mxfp8_linear import api as linear
from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant
from sparkserve_kernels.numerics.scales import e8m0_from_grid
from sparkserve_kernels.pad_k import api, reference

from tests.kernels.numeric import same_bits
from tests.kernels.test_mxfp8_linear import KINDS, run

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs and real shapes"
)


def block_scaled(rows, k, generator):
    device = generator.device
    weight = torch.randn((rows, k), generator=generator, device=device).to(torch.float8_e4m3fn)
    shape = (rows // 32, k // 32)
    exponent = torch.randint(-20, 20, shape, generator=generator, device=device)
    return weight, torch.ldexp(torch.ones(shape, device=device), exponent)


@pytest.mark.parametrize(
    ("k", "multiple", "target"),
    [(576, 128, 640), (288, 128, 384), (768, 128, 768), (32, 128, 128), (96, 64, 128)],
)
def test_target_and_padding_are_torchs_own(k, multiple, target, generator):
    assert api.padded_k(k, multiple) == target
    weight, grid = block_scaled(64, k, generator)
    padded = api.pad_k(weight, grid, multiple)
    want = reference.pad_k(weight, grid, multiple)
    assert padded.weight.shape == (64, target)
    assert same_bits(padded.weight, want[0])
    assert same_bits(padded.grid, want[1])
    if target == k:
        assert padded.weight is weight
        assert padded.grid is grid


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_shared_down_pads_as_the_specification_says(ranks):
    assert api.padded_k(2304 // ranks) == {3: 768, 4: 640, 8: 384}[ranks]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [32, 96, 288, 416, 576])
def test_a_padded_layer_gives_the_bits_of_the_unpadded_one(kind, k, generator, device):
    weight, grid = block_scaled(32, k, generator)
    padded = api.pad_k(weight, grid)
    x = torch.randn((5, k), generator=generator, device=device).to(torch.bfloat16)
    wide = api.PaddedInput(k, device).fill(x)
    plain = run(mxfp8_quant(x), (weight, e8m0_from_grid(grid, weight)), KINDS[kind])
    scales = e8m0_from_grid(padded.grid, padded.weight)
    assert same_bits(run(mxfp8_quant(wide), (padded.weight, scales), KINDS[kind]), plain)


def test_public_calls_of_both_layers_agree(generator, device):
    weight, grid = block_scaled(96, 288, generator)
    padded = api.pad_k(weight, grid)
    x = torch.randn((6, 288), generator=generator, device=device).to(torch.bfloat16)
    plain = linear.mxfp8_linear(x, weight, e8m0_from_grid(grid, weight))
    wide = api.PaddedInput(288, device).fill(x)
    scales = e8m0_from_grid(padded.grid, padded.weight)
    assert same_bits(linear.mxfp8_linear(wide, padded.weight, scales), plain)


@pytest.mark.parametrize("byte", [1, 127, 200])
def test_the_scale_over_the_padding_does_not_matter(byte, generator, device):
    weight, grid = block_scaled(32, 96, generator)
    padded = api.pad_k(weight, grid)
    x = torch.randn((3, 96), generator=generator, device=device).to(torch.bfloat16)
    wide = mxfp8_quant(api.PaddedInput(96, device).fill(x))
    scales = e8m0_from_grid(padded.grid, padded.weight)
    other = scales.clone()
    other[:, 3:] = byte
    for kind in ("scaled", "few", "many"):
        want = run(wide, (padded.weight, scales), KINDS[kind])
        assert same_bits(run(wide, (padded.weight, other), KINDS[kind]), want)


def test_buffer_keeps_its_address_and_its_zeros(generator, device):
    holder = api.PaddedInput(96, device, rows=8)
    x = torch.randn((8, 96), generator=generator, device=device).to(torch.bfloat16)
    for rows in (8, 3, 0, 5):
        wide = holder.fill(x[:rows])
        assert wide.shape == (rows, 128)
        assert rows == 0 or wide.data_ptr() == holder.buffer.data_ptr()
        assert same_bits(wide[:, :96], x[:rows])
        assert not bool(wide[:, 96:].any())
    more = torch.ones((9, 96), dtype=torch.bfloat16, device=device)
    wide = holder.fill(more)
    assert wide.data_ptr() != holder.buffer.data_ptr()
    assert same_bits(wide[:, :96], more)
    assert not bool(wide[:, 96:].any())


def test_what_fits_is_handed_through(device):
    holder = api.PaddedInput(256, device)
    x = torch.ones((300, 256), dtype=torch.bfloat16, device=device)
    assert holder.fill(x) is x
    assert holder.buffer.numel() == 0


@pytest.mark.parametrize("bad", [0.0, -1.0, 3.0, float("nan"), float("inf"), 2.0**-130])
def test_a_scale_that_is_no_power_of_two_is_refused(bad, generator):
    weight, grid = block_scaled(64, 96, generator)
    grid[1, 2] = bad
    with pytest.raises(KernelArgumentError, match=r"grid \[1, 2\] = .*positive power of two"):
        api.pad_k(weight, grid)


def test_refusals_name_both_values(generator, device):
    weight, grid = block_scaled(64, 96, generator)
    refused = [
        ((weight.float(), grid), "weight: dtype float32, expected float8_e4m3fn"),
        ((weight, grid.double()), "grid: dtype float64, expected float32"),
        ((weight, grid[:, :2]), r"grid: shape \[2, 2\], expected \[2, 3\]"),
        ((weight[:63], grid), "N = 63, expected a multiple of 32"),
        ((weight, grid, 100), "multiple = 100, expected a multiple of 32"),
        ((weight, grid, 0), "multiple = 0, expected at least 32"),
    ]
    for arguments, message in refused:
        with pytest.raises(KernelArgumentError, match=message):
            api.pad_k(*arguments)
    holder = api.PaddedInput(96, device)
    with pytest.raises(KernelArgumentError, match="x: dtype float8_e4m3fn, expected bfloat16"):
        holder.fill(weight[:4])
    with pytest.raises(KernelArgumentError, match=r"x: shape \[4, 64\], expected \[any, 96\]"):
        holder.fill(torch.zeros((4, 64), dtype=torch.bfloat16, device=device))


@needs_gpu
def test_shared_down_at_full_size(generator, device):
    weight, grid = block_scaled(5120, 576, generator)
    padded = api.pad_k(weight, grid)
    scales = e8m0_from_grid(grid, weight)
    padded_scales = e8m0_from_grid(padded.grid, padded.weight)
    for rows in (1, 6, 16, 96, 300):
        x = torch.randn((rows, 576), generator=generator, device=device).to(torch.bfloat16)
        wide = api.PaddedInput(576, device).fill(x)
        plain = linear.mxfp8_linear(x, weight, scales)
        assert same_bits(linear.mxfp8_linear(wide, padded.weight, padded_scales), plain)


@needs_gpu
def test_graph_replays_with_the_buffer(generator, device):
    weight, grid = block_scaled(64, 96, generator)
    padded = api.pad_k(weight, grid)
    scales = e8m0_from_grid(padded.grid, padded.weight)
    holder = api.PaddedInput(96, device)
    x = torch.zeros((6, 96), dtype=torch.bfloat16, device=device)
    linear.mxfp8_linear(holder.fill(x), padded.weight, scales)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear.mxfp8_linear(holder.fill(x), padded.weight, scales)
    for _ in range(3):
        x.copy_(torch.randn((6, 96), generator=generator, device=device))
        graph.replay()
        assert same_bits(out, linear.mxfp8_linear(x, weight, e8m0_from_grid(grid, weight)))
