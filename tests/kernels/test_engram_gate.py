"""The Engram gate against float64, at widths that split evenly and that do not."""

import math

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.engram_gate import api, reference
from sparkserve_kernels.engram_gate.api import RMS_EPS, Images, engram_gate
from sparkserve_kernels.engram_gate.tiles import TILES, Tile, halves

from tests.kernels.numeric import same_bits

GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs or real sizes"
)
STREAMS = 4
IMAGE = 129264


def inputs(rows, hidden, generator, streams=STREAMS):
    """x, kv and both weights, bf16."""

    def normal(*shape):
        device = generator.device
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    weights = (normal(streams, hidden), normal(streams, hidden))
    return normal(rows, streams, hidden), normal(rows, (streams + 1) * hidden), weights


def exact(x, kv, weights, images=None, eps=RMS_EPS):
    """The result in float64, not rounded."""
    wide = tuple(weight.double() for weight in weights)
    return reference.engram_gate(x.double(), kv.double(), wide, images, eps=eps)


def assert_rounded_once(got, x, kv, weights):
    """bf16 of the exact value, or next to it where fp32's error of the sum decides."""
    want = exact(x, kv, weights)
    half_a_place = want.abs().clamp(min=2.0**-126).log2().floor().exp2() * 2.0**-8
    value = kv[:, -x.shape[2] :].double()[:, None]
    allowed = half_a_place + 1e-5 * (x.double().abs() + value.abs())
    assert got.dtype == torch.bfloat16
    assert bool(((got.double() - want).abs() <= allowed).all())


@pytest.mark.parametrize(
    ("rows", "hidden"), [(1, 32), (3, 96), (7, 64), (5, 80), (2, 112), (2, 5120)]
)
def test_it_equals_float64_rounded_once(rows, hidden, generator):
    x, kv, weights = inputs(rows, hidden, generator)
    assert_rounded_once(engram_gate(x, kv, weights), x, kv, weights)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_other_numbers_of_streams(streams, generator):
    x, kv, weights = inputs(3, 64, generator, streams)
    assert_rounded_once(engram_gate(x, kv, weights), x, kv, weights)


def test_a_row_worked_out_by_hand(device):
    """x = key = 1 and weights 1 and 2: dot = 2 * 64 / 8 = 16, gate = sigmoid(4)."""
    one = torch.ones(1, 1, 64, dtype=torch.bfloat16, device=device)
    kv = torch.ones(1, 128, dtype=torch.bfloat16, device=device)
    kv[:, 64:] = 256.0
    got = engram_gate(one, kv, (one[0], one[0] * 2))
    gate = 1 / (1 + math.exp(-math.sqrt(2 * 64 / 8)))
    want = torch.tensor(1 + 256.0 * gate).bfloat16()
    assert same_bits(got, want.expand(1, 1, 64))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_dot_of_nothing_opens_the_gate_a_thousandth_past_half(sign, device):
    """|dot| has a floor of 1e-6, and zero counts as positive; x takes the half away again."""
    x = torch.full((1, 1, 32), -128.0, dtype=torch.bfloat16, device=device)
    kv = torch.full((1, 64), 256.0, dtype=torch.bfloat16, device=device)
    kv[:, :32] = 0.0 * sign
    got = engram_gate(x, kv, (x[0], x[0]))
    want = 256 / (1 + math.exp(-1e-3)) - 128
    assert torch.allclose(got.float().cpu(), torch.tensor(want), rtol=2**-7)


def test_nan_spoils_its_stream_and_no_other(generator):
    x, kv, weights = inputs(2, 96, generator)
    kv[1, 96 + 5] = math.nan
    got = engram_gate(x, kv, weights)
    assert got[1, 1].isnan().all()
    assert not got[0].isnan().any()
    assert not got[1, [0, 2, 3]].isnan().any()
    assert torch.equal(got.isnan(), reference.engram_gate(x, kv, weights).isnan())


def test_a_negative_dot_closes_the_gate(generator):
    x, kv, weights = inputs(3, 64, generator)
    for stream in range(STREAMS):
        kv[:, stream * 64 : (stream + 1) * 64] = -x[:, stream]
    ones = (torch.ones_like(weights[0]), torch.ones_like(weights[0]))
    got = engram_gate(x, kv, ones)
    assert_rounded_once(got, x, kv, ones)
    assert (got - x).abs().max() < 0.3 * kv[:, 256:].abs().max()


def test_tiny_and_large_rows_keep_their_scale(generator):
    """eps is 1e-20: a row of 2^-20 is normed as any other."""
    x, kv, weights = inputs(4, 64, generator)
    x = x * torch.tensor([2.0**-20, 2.0**20, 1.0, 0.0], device=x.device)[:, None, None].bfloat16()
    assert_rounded_once(engram_gate(x, kv, weights), x, kv, weights)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_image_rows_keep_their_bits(dtype, generator, device):
    x, kv, weights = inputs(5, 96, generator)
    tokens = torch.tensor([7, IMAGE, 0, IMAGE, IMAGE - 1], dtype=dtype, device=device)
    x[1, 0, :3] = torch.tensor([math.nan, -0.0, math.inf], device=device)
    kv[3] = math.nan
    images = Images(tokens, IMAGE)
    got = engram_gate(x, kv, weights, images)
    assert same_bits(got[[1, 3]], x[[1, 3]])
    text = [0, 2, 4]
    plain = engram_gate(x[text], kv[text], weights)
    assert same_bits(got[text], plain)
    assert same_bits(reference.engram_gate(x, kv, weights, images)[[1, 3]], x[[1, 3]])


@pytest.mark.parametrize("tile", {tile for pair in TILES.values() for tile in pair} | {Tile(3, 4)})
@pytest.mark.parametrize("rows", [1, 7])
def test_every_tile_gives_the_same_bits(tile, rows, generator):
    x, kv, weights = inputs(rows, 96, generator)
    out = torch.empty_like(x)
    api.launch(x, kv, weights, None, eps=RMS_EPS, out=out, tile=tile)
    assert same_bits(out, engram_gate(x, kv, weights))


def test_rows_depend_on_nothing_but_themselves(generator, device):
    x, kv, weights = inputs(6, 96, generator)
    whole = engram_gate(x, kv, weights)
    shuffled = torch.randperm(6, generator=generator, device=device)
    assert same_bits(engram_gate(x[shuffled], kv[shuffled], weights), whole[shuffled])
    for row in range(6):
        alone = slice(row, row + 1)
        assert same_bits(engram_gate(x[alone], kv[alone], weights), whole[alone])
    assert same_bits(engram_gate(x, kv, weights), whole)


def test_rows_may_lie_apart_and_out_may_be_x(generator):
    hidden = 112  # its second tile reaches past the row, which no access may
    x, kv, weights = inputs(5, hidden, generator)
    want = engram_gate(x, kv, weights)
    apart = torch.full((10, STREAMS, hidden), 9.0, dtype=torch.bfloat16, device=x.device)
    wide = torch.zeros(5, 5 * hidden + 16, dtype=torch.bfloat16, device=x.device)
    apart[::2], wide[:, : 5 * hidden] = x, kv
    rows = apart[::2]
    assert engram_gate(rows, wide[:, : 5 * hidden], weights, out=rows) is rows
    assert same_bits(rows, want)
    assert (apart[1::2] == 9).all()


def test_no_rows_give_no_rows(generator):
    x, kv, weights = inputs(0, 64, generator)
    assert engram_gate(x, kv, weights).shape == (0, STREAMS, 64)


def test_rows_beyond_two_gib_are_found(device):
    """A row stride whose product with the row passes 2^31 bytes and elements."""
    stride = 2**31 // 2 + 64
    if device.type == "cuda":
        base = torch.zeros(2 * stride + 64, dtype=torch.bfloat16, device=device)
    else:
        import numpy as np

        # Pages of calloc that nobody touches take no memory.
        base = torch.from_numpy(np.zeros(2 * stride + 64, np.uint16)).view(torch.bfloat16)
    x = base.as_strided((3, 1, 32), (stride, 32, 1))
    x[2] = 1.0
    kv = torch.ones(3, 64, dtype=torch.bfloat16, device=device)
    got = engram_gate(x, kv, (kv[:1, :32], kv[:1, :32]))
    assert_rounded_once(got, x, kv, (kv[:1, :32], kv[:1, :32]))
    assert got[2, 0, 0] > 1.5 > 0.6 > got[0, 0, 0]


@pytest.mark.parametrize("hidden", [32, 33, 64, 80, 96, 5120, 8192])
def test_two_tiles_cover_every_width(hidden):
    head, tail = halves(hidden)
    assert head < hidden <= head + tail
    assert head.bit_count() == tail.bit_count() == 1
    assert halves(5120) == (4096, 1024)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(x=a["x"].float()), r"x: dtype float32, expected bfloat16"),
        (lambda a: a.update(kv=a["kv"][:, :-1]), r"kv: shape \[3, 319\], expected \[3, 320\]"),
        (lambda a: a.update(x=a["x"][:, :, :40]), r"width of x = 40, expected a multiple of 16"),
        (lambda a: a.update(x=a["x"][:, :, :16]), r"width of x = 16, expected at least 32"),
        (
            lambda a: a.update(x=a["x"].transpose(0, 1)),
            r"kv: shape \[3, 320\], expected \[4, 256\]",
        ),
        (
            lambda a: a.update(weights=(a["weights"][0][:, :32], a["weights"][1])),
            r"q_weight: shape \[4, 32\], expected \[4, 64\]",
        ),
        (
            lambda a: a.update(x=a["x"].mT.contiguous().mT),
            r"row of x: strides \[64, 1, 4\]|row of x",
        ),
        (
            lambda a: a.update(images=Images(torch.zeros(2, dtype=torch.int64), 1)),
            r"tokens: shape \[2\], expected \[3\]",
        ),
    ],
)
def test_refusals_name_both_values(change, message, generator):
    x, kv, weights = inputs(3, 64, generator)
    arguments = {"x": x, "kv": kv, "weights": weights}
    change(arguments)
    with pytest.raises(KernelArgumentError, match=message):
        engram_gate(**arguments)


def test_rows_to_be_written_must_lie_apart(generator):
    x, kv, weights = inputs(3, 64, generator)
    with pytest.raises(KernelArgumentError, match="out: row stride 0, expected at least 256"):
        engram_gate(x, kv, weights, out=x[:1].expand(3, 4, 64))


def test_support_is_a_question_of_the_device(device):
    assert api.is_supported(torch.zeros(1, device=device))
    assert not api.is_supported(torch.zeros(1, device="meta"))


@GPU_ONLY
@pytest.mark.parametrize("rows", [6, 513, 4096])
def test_real_sizes_equal_float64(rows, generator):
    x, kv, weights = inputs(rows, 5120, generator)
    got = engram_gate(x, kv, weights)
    for start in range(0, rows, 512):
        part = slice(start, start + 512)
        assert_rounded_once(got[part], x[part], kv[part], weights)


@GPU_ONLY
def test_no_number_of_rows_changes_a_bit(generator):
    x, kv, weights = inputs(2000, 5120, generator)
    whole = engram_gate(x, kv, weights)
    for rows in (1, 6, 96, 511, 513, 1999):
        assert same_bits(engram_gate(x[:rows], kv[:rows], weights), whole[:rows])


@GPU_ONLY
def test_a_captured_gate_reads_new_rows(generator, device):
    x, kv, weights = inputs(6, 5120, generator)
    images = Images(torch.zeros(6, dtype=torch.int64, device=device), IMAGE)
    out = torch.empty_like(x)
    engram_gate(x, kv, weights, images, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        engram_gate(x, kv, weights, images, out=out)
    for _ in range(3):
        fresh = inputs(6, 5120, generator)
        x.copy_(fresh[0])
        kv.copy_(fresh[1])
        images.tokens[2] = IMAGE - images.tokens[2]
        graph.replay()
        assert same_bits(out, engram_gate(x, kv, weights, images))
