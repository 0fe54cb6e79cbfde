import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.index_quant import api, benchmark, reference, tiles

from tests.kernels.numeric import same_bits, untouched_zeros

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: a size or a feature of its own"
)


def wide_range(shape, generator):
    """bf16 values of every size; each group of 32 has its own power of two."""
    device = generator.device
    x = torch.randn(shape, generator=generator, device=device)
    power = torch.randint(-130, 120, (*shape[:-1], 4), generator=generator, device=device)
    near_floor = torch.randint(-22, -6, power.shape, generator=generator, device=device)
    pick = torch.rand(power.shape, generator=generator, device=device) < 0.5
    power = torch.where(pick, near_floor, power).repeat_interleave(32, dim=-1)
    return torch.ldexp(x.double(), power).to(torch.bfloat16)


def group_of(*values):
    """One key whose first group starts with these values and holds zeros else."""
    x = torch.zeros(1, 128)
    x[0, : len(values)] = torch.tensor(values)
    return x


class TestTheRule:
    """The reference against worked values and against its own definition in float64."""

    @pytest.mark.parametrize(("amax", "byte"), [(6.0, 127), (7.0, 128), (0.0, 114), (1e-5, 114)])
    def test_the_packers_scale(self, amax, byte):
        _, scales = reference.pack_index(group_of(amax))
        assert scales.tolist() == [[byte, 114, 114, 114]]

    def test_a_key_byte_for_byte(self):
        x = group_of(6.0, -0.5, 1.0, -1.5, 2.0, 3.0, -4.0, 0.25, 0.75, 5.0, -0.0)
        payload, scales = reference.index_quant(x.to(torch.bfloat16))
        assert payload[0, :6].tolist() == [0x97, 0xB2, 0x54, 0x0E, 0x62, 0x08]
        assert payload[0, 6:].max() == 0
        assert scales.tolist() == [[127, 114, 114, 114]]

    def test_a_largest_value_of_3_takes_half_the_scale_in_the_second_stage(self):
        # 3.25 / 1 rounds to 3; the packer sees 3, and 3/6 is the power of two below.
        payload, scales = reference.index_quant(group_of(3.25, 1.0).to(torch.bfloat16))
        assert (payload[0, 0].item(), scales[0, 0].item()) == (0x47, 126)

    def test_both_stages_differ_from_the_packer_alone_below_its_floor(self):
        # In units of 2^-13 the packer alone sees .266; after stage one it is .25, a tie.
        x = group_of(2.125 * 2.0**-16, 6 * 2.0**-16).to(torch.bfloat16)
        both, alone = reference.index_quant(x)[0], reference.pack_index(x)[0]
        assert (both[0, 0].item() & 15, alone[0, 0].item() & 15) == (0, 1)

    def test_every_value_lands_on_a_nearest_one(self, generator):
        x = torch.randn((40, 128), generator=generator, device=generator.device)
        x = x.to(torch.bfloat16)
        assert benchmark.worst_step(x, *reference.index_quant(x)) <= 1.0

    def test_what_came_from_a_record_goes_back_into_it(self, generator):
        payload, scales = reference.index_quant(wide_range((60, 128), generator))
        values = reference.index_dequant(payload, scales)
        again = reference.index_dequant(*reference.index_quant(values.to(torch.bfloat16)))
        assert same_bits(values, again)


@pytest.mark.parametrize("shape", [(1, 128), (7, 128), (3, 32, 128), (131, 1, 128)])
def test_kernel_and_reference_agree_bit_for_bit(shape, generator):
    x = wide_range(shape, generator)
    for have, wanted in zip(api.index_quant(x), reference.index_quant(x), strict=True):
        assert same_bits(have, wanted)


@pytest.mark.parametrize("tile", [tiles.FEW, tiles.MANY])
def test_every_code_at_every_distance_from_the_floor(tile, device):
    """All e2m1 magnitudes and the ties between them, for each largest value and power of two."""
    base = torch.tensor([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 0])
    rows = []
    for power in range(-24, -8):
        for largest in (6.0, 5.0, 4.0, 3.75, 3.5, 3.25, 3.0625, 3.0):
            values = torch.cat((base, -base)).clamp(-largest, largest)
            values[15] = largest
            rows.append(torch.cat([values * 2.0 ** (power - spread) for spread in range(4)]))
    x = torch.stack(rows).to(device, torch.bfloat16)
    payload = torch.empty((len(x), 64), dtype=torch.uint8, device=device)
    scales = torch.empty((len(x), 4), dtype=torch.uint8, device=device)
    api.launch(x, payload, scales, tile)
    wanted, wanted_scales = reference.index_quant(x)
    assert same_bits(scales, wanted_scales)
    assert same_bits(payload, wanted)


def test_rows_and_heads_may_lie_apart(generator):
    wide = wide_range((4, 5, 128), generator).repeat(1, 1, 2)
    x = wide[::2, 1:4, 64:192]
    for have, wanted in zip(api.index_quant(x), api.index_quant(x.contiguous()), strict=True):
        assert same_bits(have, wanted)


def test_a_row_depends_on_itself_alone(generator):
    x = wide_range((5, 128), generator)
    payload, scales = api.index_quant(x)
    for row in range(5):
        alone, alone_scales = api.index_quant(x[row : row + 1])
        assert same_bits(alone[0], payload[row])
        assert same_bits(alone_scales[0], scales[row])


def test_no_rows_give_empty_results(device):
    payload, scales = api.index_quant(torch.zeros((0, 32, 128), device=device).bfloat16())
    assert payload.shape == (0, 32, 64)
    assert scales.shape == (0, 32, 4)


class TestPages:
    def test_keys_become_records_and_nothing_else_is_touched(self, generator, device):
        # Pages of 8 slots lie 700 bytes apart, of which a layer owns 544 from byte 12 on.
        pages = torch.full((5, 700), 0xAA, dtype=torch.uint8, device=device)
        wanted = pages.clone()
        x = wide_range((7, 128), generator)
        slots = torch.tensor([39, -1, 0, 8, 40, 17, -9], device=device)
        api.index_quant_to_pages(x, slots, pages[:, 12:556], 8)
        slots[4] = -1  # one past the last slot writes nothing either
        reference.index_quant_to_pages(x, slots, wanted[:, 12:556], 8)
        assert same_bits(pages, wanted)

    def test_a_page_of_64_slots_byte_for_byte(self, device):
        pages = torch.zeros((2, 4352), dtype=torch.uint8, device=device)
        x = group_of(7.0, 0, -2.0).to(device, torch.bfloat16)
        slots = torch.tensor([64 + 63], dtype=torch.int32, device=device)
        api.index_quant_to_pages(x, slots, pages, 64)
        written = [(page, at, int(pages[page, at])) for page, at in pages.nonzero().tolist()]
        scales = [(1, 4096 + 4 * 63 + group, byte) for group, byte in enumerate((128, *[114] * 3))]
        assert written == [(1, 64 * 63, 6), (1, 64 * 63 + 1, 0xA), *scales]

    def test_offsets_pass_2_to_the_31(self, device):
        # Neither the page nor the stride passes it, only their product does.
        stride = 2**30 + 100
        pages = untouched_zeros(2 * stride + 68, device).as_strided((3, 68), (stride, 1))
        x = group_of(6.0).to(device, torch.bfloat16)
        slots = torch.tensor([2], dtype=torch.int32, device=device)
        api.index_quant_to_pages(x, slots, pages, 1)
        assert pages[2, 0].item() == 7
        assert pages[2, 64:68].tolist() == [127, 114, 114, 114]
        assert int(pages[:2].max()) == 0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 64).bfloat16(), r"shape \[2, 64\], expected \[any, 128\]"),
        (torch.zeros(128).bfloat16(), r"1 axes, expected 2 or 3"),
        (torch.zeros(2, 128), r"dtype float32, expected bfloat16"),
        (torch.zeros(128, 128).bfloat16().t(), r"strides \[1, 128\], expected 1 along the last"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_values(x, message, device):
    with pytest.raises(KernelArgumentError, match=message):
        api.index_quant(x.to(device))


@pytest.mark.parametrize(
    ("slots", "width", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), 544, r"slots: shape \[3\], expected \[2\]"),
        (torch.zeros(2), 544, r"slots: dtype float32, expected int32 or int64"),
        (torch.zeros(2, dtype=torch.int64), 543, r"543 bytes for 8 slots, expected at least 544"),
    ],
)
def test_pages_that_do_not_fit_are_refused_with_both_values(slots, width, message, device):
    pages = torch.zeros((1, width), dtype=torch.uint8, device=device)
    x = torch.zeros((2, 128), dtype=torch.bfloat16, device=device)
    with pytest.raises(KernelArgumentError, match=message):
        api.index_quant_to_pages(x, slots.to(device), pages, 8)


@needs_gpu
def test_a_graph_replays_on_new_values(device, generator):
    x = torch.zeros((6, 32, 128), dtype=torch.bfloat16, device=device)
    api.index_quant(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        have = api.index_quant(x)
    for _ in range(3):
        x.copy_(wide_range(x.shape, generator))
        graph.replay()
        for one, wanted in zip(have, reference.index_quant(x), strict=True):
            assert same_bits(one, wanted)


@needs_gpu
def test_a_prefill_chunk_agrees_bit_for_bit(generator):
    x = wide_range((4096, 32, 128), generator)
    for have, wanted in zip(api.index_quant(x), reference.index_quant(x), strict=True):
        assert same_bits(have, wanted)
