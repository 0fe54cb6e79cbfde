import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.mxfp8_quant import api, benchmark, reference, tiles
from sparkserve_kernels.numerics.scales import swizzled_bytes, unswizzle

from tests.kernels.numeric import same_bits, untouched_zeros

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: a size or a feature of its own"
)
EDGES = (
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    448.0,
    449.0,
    6.0,
    3e38,
    1e-36,
    -1e-36,
    1e-45,
    1e-40,
    448 * 2.0**-127,
    448 * 2.0**-126,
    449 * 2.0**-127,
    7.84,
    -7.84,
)


def wide_range(rows, columns, generator, dtype):
    """Normal values times powers of two from 2^-140 to 2^120, another for every value."""
    shape = (rows, columns)
    x = torch.randn(shape, generator=generator, device=generator.device)
    power = torch.randint(-140, 120, (rows, 1), generator=generator, device=generator.device)
    near = torch.randint(-8, 9, shape, generator=generator, device=generator.device)
    return torch.ldexp(x.double(), power + near).clamp(-3e38, 3e38).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "columns", "layout"),
    [
        (1, 32, "linear"),
        (7, 576, "linear"),
        (131, 96, "linear"),
        (1, 32, "128x4"),
        (6, 160, "128x4"),
        (129, 96, "128x4"),
    ],
)
def test_kernel_and_reference_agree_bit_for_bit(rows, columns, layout, dtype, generator):
    x = wide_range(rows, columns, generator, dtype)
    q, scales = api.mxfp8_quant(x, layout)
    assert same_bits(q, reference.mxfp8_quant(x, layout)[0])
    assert same_bits(scales, reference.mxfp8_quant(x, layout)[1])


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
@pytest.mark.parametrize("tile", [tiles.FEW, tiles.MANY])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_edges_agree_on_every_launch_shape(tile, dtype, generator, device):
    values = torch.tensor(EDGES, device=device)
    pick = torch.randint(0, len(EDGES), (9, 96), generator=generator, device=device)
    alone = torch.zeros((len(EDGES), 96), device=device)
    alone[:, 40] = values
    x = torch.cat((values[pick], alone)).to(dtype)
    q = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty((len(x), 3), dtype=torch.uint8, device=device)
    api.launch(x, q, scales, tile)
    wanted, wanted_scales = reference.mxfp8_quant(x)
    assert same_bits(scales, wanted_scales)
    assert same_bits(q, wanted)


def test_every_value_is_rounded_to_a_nearest_one(generator):
    x = torch.randn((8, 256), generator=generator, device=generator.device)
    for values in (x, x.to(torch.bfloat16)):
        assert benchmark.worst_step(values, *api.mxfp8_quant(values)) <= 1.0


def test_the_measure_of_rounding_sees_one_wrong_code(generator):
    x = torch.randn((8, 256), generator=generator, device=generator.device)
    q, scales = api.mxfp8_quant(x)
    q.view(torch.uint8)[3, 7] += 1
    assert benchmark.worst_step(x, q, scales) > 1.0


def test_rows_may_lie_apart(generator, device):
    wide = torch.full((5, 300), float("nan"), device=device)
    x = wide[:, 7:167]
    x.copy_(torch.randn((5, 160), generator=generator, device=device))
    for values in (x, wide.to(torch.bfloat16)[:, 7:167], x[::2]):
        for one, other in zip(
            api.mxfp8_quant(values), api.mxfp8_quant(values.contiguous()), strict=True
        ):
            assert same_bits(one, other)


def test_a_row_depends_on_itself_alone(generator):
    x = torch.randn((7, 96), generator=generator, device=generator.device).to(torch.bfloat16)
    q, scales = api.mxfp8_quant(x)
    for row in range(7):
        alone, alone_scales = api.mxfp8_quant(x[row : row + 1])
        assert same_bits(alone[0], q[row])
        assert same_bits(alone_scales[0], scales[row])


def test_the_128x4_layout_pads_with_zero_bytes(generator):
    x = torch.randn((3, 160), generator=generator, device=generator.device)
    _, scales = api.mxfp8_quant(x, "128x4")
    assert len(scales) == swizzled_bytes(3, 5) == 1024
    assert same_bits(unswizzle(scales, 3, 5), api.mxfp8_quant(x)[1])
    assert int((scales != 0).sum()) == 15


@pytest.mark.parametrize(("shape", "layout"), [((0, 64), "linear"), ((0, 64), "128x4")])
def test_no_rows_give_empty_results(shape, layout, device):
    q, scales = api.mxfp8_quant(torch.zeros(shape, device=device), layout)
    assert q.shape == shape
    assert scales.numel() == 0


def test_offsets_pass_2_to_the_31(device):
    # Neither the row nor the stride passes it, only their product does.
    stride = 2**30 + 64
    buffer = untouched_zeros(2 * (2 * stride + 32), device).view(torch.bfloat16)
    x = buffer.as_strided((3, 32), (stride, 1))
    x[2] = 1.0
    q, scales = api.mxfp8_quant(x)
    assert scales.tolist() == [[0], [0], [119]]
    assert q.view(torch.uint8).unique(dim=1).tolist() == [[0], [0], [0x78]]


@pytest.mark.parametrize(
    ("x", "layout", "message"),
    [
        (torch.zeros(2, 48), "linear", r"K = 48, expected a multiple of 32"),
        (torch.zeros(64), "linear", r"shape \[64\], expected \[any, any\]"),
        (torch.zeros(2, 64).half(), "linear", r"float16, expected bfloat16 or float32"),
        (torch.zeros(64, 2).t(), "linear", r"strides \[1, 2\], expected 1 along the last"),
        (torch.zeros(2, 64), "4x128", r"layout '4x128', expected 'linear' or '128x4'"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_values(x, layout, message, device):
    with pytest.raises(KernelArgumentError, match=message):
        api.mxfp8_quant(x.to(device), layout)


@needs_gpu
def test_a_graph_replays_on_new_values(device, generator):
    x = torch.zeros((6, 5120), dtype=torch.bfloat16, device=device)
    api.mxfp8_quant(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scales = api.mxfp8_quant(x)
    for _ in range(3):
        x.copy_(torch.randn(x.shape, generator=generator, device=device))
        graph.replay()
        wanted, wanted_scales = reference.mxfp8_quant(x)
        assert same_bits(q, wanted)
        assert same_bits(scales, wanted_scales)


@needs_gpu
@pytest.mark.parametrize("layout", ["linear", "128x4"])
@pytest.mark.parametrize(("rows", "columns"), [(4096, 5120), (4096, 576), (96, 15360), (6, 6144)])
def test_real_shapes_agree_bit_for_bit(rows, columns, layout, generator):
    x = wide_range(rows, columns, generator, torch.bfloat16)
    q, scales = api.mxfp8_quant(x, layout)
    wanted, wanted_scales = reference.mxfp8_quant(x, layout)
    assert same_bits(q, wanted)
    assert same_bits(scales, wanted_scales)


@needs_gpu
def test_outputs_pass_2_to_the_31(device):
    x = torch.zeros((2**21 + 3, 1024), dtype=torch.bfloat16, device=device)
    x[-1] = 1.0
    q, scales = api.mxfp8_quant(x)
    assert q[-1].view(torch.uint8).unique().tolist() == [0x78]
    assert scales[-1].unique().tolist() == [119]
    assert int(q[-2].view(torch.uint8).max()) == 0
