import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.index_quant import reference as index
from sparkserve_kernels.kv_records import api, reference
from sparkserve_kernels.kv_records.layouts import RECORDS, page_layout

from tests.kernels.numeric import same_bits, untouched_zeros

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: a size or a feature of its own"
)
LAYOUTS = [
    (name, arrangement) for name, record in RECORDS.items() for arrangement in record.arrangements
]
LATENTS = [pair for pair in LAYOUTS if pair[0] != "index68"]


def latents(rows, width, generator, spread=12):
    """bf16 tokens whose groups of 16 have powers of two of their own."""
    device = generator.device
    x = torch.randn((rows, width), generator=generator, device=device)
    power = torch.randint(-spread, spread, (rows, width // 16), generator=generator, device=device)
    return torch.ldexp(x.double(), power.repeat_interleave(16, dim=1)).to(torch.bfloat16)


def pool(layout, pages, device, *, offset=0, stride=None):
    """A cache whose pages are a layer's part, from a byte on, of physical pages."""
    stride = stride or offset + layout.padded_page_bytes
    whole = torch.full((pages, stride), 0xAA, dtype=torch.uint8, device=device)
    return whole, api.Cache(whole[:, offset : offset + layout.page_bytes], layout)


def token(width, *values, at=0):
    x = torch.zeros(1, width)
    x[0, at : at + len(values)] = torch.tensor(values)
    return x.to(torch.bfloat16)


class TestBytesByHand:
    """Worked tokens, packed by the kernel; everything that is not named is 0."""

    def packed(self, name, x, device, arrangement=None):
        layout = page_layout(name, 1, arrangement)
        whole, cache = pool(layout, 1, device)
        api.kv_pack(x.to(device), torch.zeros(1, dtype=torch.int64, device=device), cache)
        return whole[0, : layout.page_bytes].cpu()

    def test_584(self, device):
        x = torch.zeros(1, 512)
        x[0, 0:64] = 448.0
        x[0, 64:128] = 1.0
        x[0, 128] = 449.0  # bf16 knows 448 and 450
        x[0, 192] = 450.0
        x[0, 448:512] = 1.0
        page = self.packed("584", x.to(torch.bfloat16), device)
        assert page[0:64].tolist() == [0x7E] * 64
        assert page[64:128].tolist() == [0x78] * 64
        assert page[128:192].tolist() == [0x7E] + [0] * 63
        assert page[192:256].tolist() == [0x76] + [0] * 63
        assert page[256:448].tolist() == [0] * 192
        assert page[448:576].tolist() == [0x80, 0x3F] * 64
        assert page[576:584].tolist() == [127, 119, 127, 128, 127, 127, 127, 0]

    def test_amax_449_of_584(self):
        codes, scales = reference.fp8_round(torch.tensor([[449.0] + [0.0] * 63]), 64)
        assert (codes[0, 0].item(), scales.tolist()) == (0x76, [[128]])

    def test_432(self, device):
        x = torch.zeros(1, 512)
        x[0, 0:4] = torch.tensor([6.0, -3.0, 0.5, 5.0])
        x[0, 16] = 1.0
        x[0, 448:450] = torch.tensor([-1.0, 0.25])
        page = self.packed("432", x.to(torch.bfloat16), device)
        assert page[0:2].tolist() == [0xD7, 0x61]
        assert page[8].item() == 7
        # -1 and .25 with the scale of 1.0, .171875: 1.4545 is nearest to 1.5.
        assert page[224].item() == 0x3F
        assert page[256:288].tolist() == [0x38, 0x23, *[1] * 26, 0x23, 1, 1, 1]
        assert page[288:304].tolist() == [0] * 16
        assert page[304:308].tolist() == [0x80, 0xBF, 0x80, 0x3E]
        assert int(page[2:8].max()) == int(page[9:224].max()) == int(page[308:432].max()) == 0

    @pytest.mark.parametrize("arrangement", ["split", "interleaved"])
    def test_528(self, device, arrangement):
        x = token(512, 448.0, -1.0, at=480)
        page = self.packed("528", x, device, arrangement)
        assert page[480:482].tolist() == [0x7E, 0xB8]
        assert page[512:528].tolist() == [127] * 16
        assert int(page[:480].max()) == int(page[482:512].max()) == 0

    @pytest.mark.parametrize("arrangement", ["split", "interleaved"])
    def test_288(self, device, arrangement):
        page = self.packed("288", token(512, 1.0, 0.0, -0.5, at=496), device, arrangement)
        # .5 / .171875 = 2.909 is nearest to 3.
        assert page[248:256].tolist() == [0x07, 0x0D, 0, 0, 0, 0, 0, 0]
        assert page[256:288].tolist() == [1] * 31 + [0x23]
        assert int(page[:248].max()) == 0

    def test_index68(self, device):
        page = self.packed("index68", token(128, 7.0, 0.0, -2.0, at=32), device)
        assert page[16:18].tolist() == [0x06, 0x0A]
        assert page[64:68].tolist() == [114, 128, 114, 114]
        assert int(page[:16].max()) == int(page[18:64].max()) == 0

    @pytest.mark.parametrize("name", RECORDS)
    def test_a_token_of_zeros_reads_back_as_zeros(self, name, device):
        layout = page_layout(name, 1)
        _, cache = pool(layout, 1, device)
        slots = torch.zeros(1, dtype=torch.int64, device=device)
        zeros = torch.zeros((1, layout.record.width), dtype=torch.bfloat16, device=device)
        api.kv_pack(zeros, slots, cache)
        assert all(same_bits(part, zeros) for part in api.kv_unpack(slots, cache))


class TestScales:
    def test_powers_of_two_times_448_take_just_that_power(self):
        for power in range(-126, 119):
            x = torch.zeros(1, 64)
            x[0, 5] = 448.0 * 2.0**power
            codes, scales = reference.fp8_round(x, 64)
            assert (codes[0, 5].item(), scales.item()) == (0x7E, max(127 + power, 0))

    def test_every_e4m3_scale_is_found_from_six_times_its_value(self):
        for byte in range(1, 0x7F):
            value = reference.e4m3_decode(torch.tensor([byte], dtype=torch.uint8))
            codes, scales = reference.fp4_round((6 * value).expand(1, 16).to(torch.bfloat16))
            assert scales.item() == byte
            assert set(codes.flatten().tolist()) == {7}

    def test_the_scale_is_the_ceiling_in_exact_arithmetic(self, generator):
        x = latents(400, 512, generator, spread=100)
        _, scales = reference.fp8_round(x, 32)
        amax = x.double().abs().unflatten(1, (-1, 32)).amax(2)
        # 448 is 7 * 2^6, so amax <= 448 * 2^k just where amax / 7 <= 2^(k + 6), without rounding
        # that could cross it: the quotient of a bf16 value is a power of two only when exact.
        part, exponent = torch.frexp(amax / 7)
        byte = 127 - 6 + exponent - (part == 0.5).int()
        assert torch.equal(scales.int(), byte.clamp(0, 254))


class TestRoundTrips:
    @pytest.mark.parametrize(("name", "arrangement"), LAYOUTS)
    def test_kernels_and_reference_agree_in_pages_with_gaps(self, name, arrangement, generator):
        device = generator.device
        layout = page_layout(name, 8, arrangement)
        stride = 512 + layout.padded_page_bytes + 1024
        whole, cache = pool(layout, 5, device, offset=512, stride=stride)
        wanted, like = pool(layout, 5, device, offset=512, stride=stride)
        wide = latents(9, 2 * layout.record.width, generator)
        x = wide[:, 16 : 16 + layout.record.width]
        x[3] = 0
        slots = torch.tensor([3, -1, 39, 0, 17, 8, 40, 9, -7], device=device)
        api.kv_pack(x, slots, cache)
        reference.kv_pack(x, slots, like.pages, layout)
        assert same_bits(whole, wanted)
        for have, want in zip(
            api.kv_unpack(slots, cache),
            reference.kv_unpack(slots, cache.pages, layout),
            strict=True,
        ):
            assert same_bits(have, want)
            assert int(have[[1, 6, 8]].count_nonzero()) == 0

    @pytest.mark.parametrize(
        ("name", "bound"), [("584", 2**-4), ("528", 2**-4), ("432", 0.25), ("288", 0.25)]
    )
    def test_values_come_back_within_half_a_step(self, name, bound, generator):
        x = latents(6, 512, generator, spread=3)
        data, scales = reference.encode(x, name)
        for part in reference.decode(data, scales, name):
            groups = x.double().unflatten(1, (-1, 16)).abs().amax(2).repeat_interleave(16, 1)
            wanted = x.double().abs().clamp(min=0) if bound < 0.2 else groups
            floor = groups * 2.0**-8
            error = (part.double() - x.double()).abs()
            assert bool((error <= torch.maximum(wanted * bound, floor)).all())

    def test_the_key_of_432_has_exact_rope_and_its_value_does_not(self, generator):
        device = generator.device
        x = latents(4, 512, generator, spread=2)
        _, cache = pool(page_layout("432", 64), 1, device, offset=512, stride=32768)
        slots = torch.tensor([0, 63, 5, 9], device=device)
        api.kv_pack(x, slots, cache)
        key, value = api.kv_unpack(slots, cache)
        assert same_bits(key[:, 448:], x[:, 448:])
        assert same_bits(key[:, :448], value[:, :448])
        assert same_bits(value, reference.fp4_values(*reference.fp4_round(x)))

    def test_what_came_from_e4m3_goes_back_into_584_and_528(self, generator):
        for name, group in (("584", 64), ("528", 32)):
            x = latents(20, 512, generator, spread=6)
            once = reference.decode(*reference.encode(x, name), name).key
            twice = reference.decode(*reference.encode(once, name), name).key
            assert same_bits(once, twice), group

    def test_288_holds_compressed_latents_without_loss(self, generator):
        """Written from the latent itself it is that latent's own rounding, bit for bit."""
        device = generator.device
        x = latents(8, 512, generator)
        _, cache = pool(page_layout("288", 4), 2, device)
        slots = torch.arange(8, device=device)
        api.kv_pack(x, slots, cache)
        rounded = reference.fp4_values(*reference.fp4_round(x))
        assert same_bits(api.kv_unpack(slots, cache).key, rounded)

    def test_288_of_an_already_rounded_latent_loses_in_one_narrow_range_only(self):
        """Largest values from 9 to 10 * 2^-9 take scale 2 * 2^-9 and then, rounded to 8 * 2^-9,
        scale 2^-9, which ends at 6 * 2^-9. So a record must be written from the latent itself.
        """
        bits = torch.arange(1, 0x7F80, dtype=torch.int32).to(torch.int16)
        amax = bits.view(torch.bfloat16).float()
        amax = amax[amax <= 6 * 448.0]
        parts = torch.tensor([1, 0.95, 0.8, 0.7, 0.6, 0.55, 0.5, 0.4, 0.3, 0.25, 0.2, 0.1, 0.05])
        x = torch.nn.functional.pad(amax[:, None] * parts, (0, 3)).to(torch.bfloat16)
        once = reference.fp4_values(*reference.fp4_round(x))
        twice = reference.fp4_values(*reference.fp4_round(once))
        lost = (once != twice).any(1)
        assert torch.equal(lost, (amax >= 9 * 2.0**-9) & (amax <= 10 * 2.0**-9))
        assert int(lost.sum()) == 17


class TestTheDefectsOfOneEngine:
    """Faults that were met where caches of two records and geometries are read together."""

    def test_writers_of_target_and_draft_share_a_record(self, generator):
        device = generator.device
        x = latents(4, 512, generator, spread=2)
        layout = page_layout("432", 64)
        _, cache = pool(layout, 1, device, offset=512, stride=32768)
        draft = api.Cache(cache.pages, page_layout("432", 64))
        api.kv_pack(x[:2], torch.tensor([0, 2], device=device), cache)
        api.kv_pack(x[2:], torch.tensor([1, 3], device=device), draft)
        key = api.kv_unpack(torch.tensor([0, 2, 1, 3], device=device), cache).key
        assert same_bits(key[:, 448:], x[:, 448:])
        with pytest.raises(KernelArgumentError, match="27648 bytes for 64 slots of record 584, ex"):
            api.kv_pack(
                x, torch.arange(4, device=device), api.Cache(cache.pages, page_layout("584", 64))
            )

    @pytest.mark.parametrize(
        ("main", "extra"), [("432", "432"), ("584", "584"), ("528", "288"), ("528", "528")]
    )
    def test_two_caches_are_read_each_in_its_own_record_size_stride_and_slots(
        self, main, extra, generator
    ):
        device = generator.device
        x, y = latents(6, 512, generator, spread=2), latents(6, 512, generator, spread=2)
        first, second = page_layout(main, 64), page_layout(extra, 4)
        _, main_cache = pool(first, 2, device, offset=512, stride=first.padded_page_bytes + 2048)
        _, extra_cache = pool(second, 3, device, offset=256, stride=second.padded_page_bytes + 256)
        main_slots = torch.tensor([[70, 3], [127, -1], [0, 64]], device=device)
        extra_slots = torch.tensor([[11, 0, -1], [4, 7, 8], [12, 3, 127]], device=device)
        api.kv_pack(x, main_slots.flatten(), main_cache)
        api.kv_pack(y[:6], extra_slots.flatten()[[0, 1, 3, 4, 5, 7]], extra_cache)
        both = api.kv_unpack_dual(main_slots, main_cache, extra_slots, extra_cache)
        for part in range(2):
            assert both[part].shape == (3, 5, 512)
            for columns, slots, cache in (
                (slice(0, 2), main_slots, main_cache),
                (slice(2, 5), extra_slots, extra_cache),
            ):
                alone = reference.kv_unpack(slots, cache.pages, cache.layout)[part]
                assert same_bits(both[part][:, columns], alone)
        assert int(both.key[:, 2:].flatten(0, 1)[[2, 6, 8]].count_nonzero()) == 0
        assert int(both.key[:, 2:].flatten(0, 1)[[0, 1, 3, 4, 5, 7]].count_nonzero()) > 0

    def test_a_pair_that_no_reader_takes_is_refused(self, device):
        _, main = pool(page_layout("584", 4), 1, device)
        _, extra = pool(page_layout("288", 4), 1, device)
        slots = torch.zeros((1, 1), dtype=torch.int64, device=device)
        with pytest.raises(KernelArgumentError, match="main cache 584 split with extra cache 288"):
            api.kv_unpack_dual(slots, main, slots, extra)


class TestBorders:
    @pytest.mark.parametrize("name", RECORDS)
    def test_offsets_pass_2_to_the_31(self, name, generator):
        device = generator.device
        layout = page_layout(name, 1)
        # Neither the page nor the stride passes it, only their product does.
        stride = 2**30 + 4096
        whole = untouched_zeros(2 * stride + 4096, device).as_strided((3, 4096), (stride, 1))
        cache = api.Cache(whole[:, : layout.page_bytes], layout)
        x = latents(1, layout.record.width, generator, spread=2)
        slots = torch.full((1,), 2, dtype=torch.int32, device=device)
        api.kv_pack(x, slots, cache)
        wanted = reference.decode(*reference.encode(x, name), name)
        for have, want in zip(api.kv_unpack(slots, cache), wanted, strict=True):
            assert same_bits(have, want)
        assert int(cache.pages[:2].max()) == 0

    def test_nothing_in_gives_nothing_out(self, device):
        _, cache = pool(page_layout("584", 4), 1, device)
        none = torch.zeros(0, dtype=torch.int64, device=device)
        api.kv_pack(torch.zeros((0, 512), dtype=torch.bfloat16, device=device), none, cache)
        assert api.kv_unpack(none, cache).key.shape == (0, 512)
        no_pages = api.Cache(cache.pages[:0], cache.layout)
        zeros = api.kv_unpack(torch.zeros((2, 1), dtype=torch.int64, device=device), no_pages).key
        assert zeros.shape == (2, 1, 512)
        assert int(zeros.count_nonzero()) == 0

    @pytest.mark.parametrize(
        ("x", "slots", "message"),
        [
            (
                torch.zeros(2, 128).bfloat16(),
                torch.zeros(2).long(),
                r"\[2, 128\], expected \[any, 5",
            ),
            (torch.zeros(2, 512), torch.zeros(2).long(), r"dtype float32, expected bfloat16"),
            (torch.zeros(2, 512).bfloat16(), torch.zeros(3).long(), r"\[3\], expected \[2\]"),
            (torch.zeros(2, 512).bfloat16(), torch.zeros(2), r"float32, expected int32 or int64"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_both_values(self, x, slots, message, device):
        _, cache = pool(page_layout("584", 4), 1, device)
        with pytest.raises(KernelArgumentError, match=message):
            api.kv_pack(x.to(device), slots.to(device), cache)

    def test_odd_pages_cannot_hold_bf16(self, device):
        _, cache = pool(page_layout("584", 4), 2, device, stride=4001)
        with pytest.raises(KernelArgumentError, match=r"4001 bytes apart, expected both even"):
            api.kv_unpack(torch.zeros(1, dtype=torch.int64, device=device), cache)

    def test_an_index_key_that_was_fake_quantised_becomes_the_two_stage_record(self, generator):
        device = generator.device
        x = latents(5, 128, generator, spread=16)
        layout = page_layout("index68", 8)
        _, cache = pool(layout, 1, device)
        api.kv_pack(index.fake_quant(x), torch.arange(5, device=device), cache)
        payload, scales = index.index_quant(x)
        assert same_bits(cache.pages[0, :320].reshape(5, 64), payload)
        assert same_bits(cache.pages[0, 512:532].reshape(5, 4), scales)


@needs_gpu
@pytest.mark.parametrize(("name", "arrangement"), LATENTS)
def test_a_graph_replays_on_new_values(name, arrangement, generator):
    device = generator.device
    layout = page_layout(name, 64, arrangement)
    _, cache = pool(layout, 4, device)
    x = latents(96, 512, generator)
    slots = torch.randperm(256, generator=generator, device=device)[:96]
    api.kv_unpack(slots, cache)
    api.kv_pack(x, slots, cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        api.kv_pack(x, slots, cache)
        have = api.kv_unpack(slots, cache)
    for _ in range(2):
        x.copy_(latents(96, 512, generator))
        slots.copy_(torch.randperm(256, generator=generator, device=device)[:96])
        graph.replay()
        wanted = reference.decode(*reference.encode(x, name), name)
        for one, other in zip(have, wanted, strict=True):
            assert same_bits(one, other)


@needs_gpu
@pytest.mark.parametrize(("name", "arrangement"), LATENTS)
def test_a_prefill_chunk_agrees_bit_for_bit(name, arrangement, generator):
    device = generator.device
    layout = page_layout(name, 256, arrangement)
    _, cache = pool(layout, 16, device)
    x = latents(4096, 512, generator, spread=60)
    slots = torch.randperm(4096, generator=generator, device=device)
    api.kv_pack(x, slots, cache)
    wanted = reference.decode(*reference.encode(x, name), name)
    for one, other in zip(api.kv_unpack(slots, cache), wanted, strict=True):
        assert same_bits(one, other)
