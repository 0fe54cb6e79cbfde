import logging

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.numerics import api, rules, scales
from sparkserve_kernels.numerics.elements import fp32_bits, fp32_from_bits

from tests.kernels.numeric import same_bits
from tests.kernels.rounding_search import (
    bf16_values,
    e2m1_values,
    e4m3_values,
    hard_fp32,
    nearest_even,
)

CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8)


def group(*values):
    x = torch.zeros(32)
    x[: len(values)] = torch.tensor(values, dtype=torch.float64).float()
    return x


class TestElements:
    @pytest.mark.parametrize(
        ("value", "code"),
        [
            (-7.84, 0xD0),
            (17, 0x58),
            (18, 0x59),
            (19, 0x5A),
            (248, 0x78),
            (464, 0x7E),
            (1e30, 0x7E),
            (float("-inf"), 0xFE),
            (2.0**-10, 0x00),
            (0.00097657, 0x01),
            (1.5 * 2.0**-9, 0x02),
            (2.0**-6, 0x08),
            (1.0625, 0x38),
            (1.1875, 0x3A),
            (-0.0, 0x80),
            (float("nan"), 0x7F),
        ],
    )
    def test_e4m3(self, value, code):
        assert api.e4m3_encode(torch.tensor([value])).item() == code

    @pytest.mark.parametrize(
        ("bits", "rounded", "cut"),
        [
            (0x3F808000, 0x3F80, 0x3F80),
            (0x3F818000, 0x3F82, 0x3F81),
            (0x3F80C000, 0x3F81, 0x3F80),
        ],
    )
    def test_bf16(self, bits, rounded, cut):
        x = fp32_from_bits(torch.tensor([bits]))
        assert api.bf16_round(x).view(torch.int16).item() == rounded
        assert api.bf16_truncate(x).view(torch.int16).item() == cut

    @pytest.mark.parametrize(
        ("value", "code"),
        [
            (0.25, 0),
            (0.75, 2),
            (1.25, 2),
            (1.75, 4),
            (2.5, 4),
            (3.5, 6),
            (5, 6),
            (0.2500001, 1),
            (-0.75, 10),
            (-5, 14),
            (7, 7),
        ],
    )
    def test_e2m1(self, value, code):
        assert api.e2m1_encode(torch.tensor([float(value)])).item() == code

    def test_rounding_is_what_a_search_finds(self, generator):
        x = hard_fp32(generator, 1 << 18).cpu()
        a, sign = x.double().abs(), torch.signbit(x).long()
        e4m3 = nearest_even(a.clamp(max=448), e4m3_values()) | sign << 7
        assert torch.equal(api.e4m3_encode(x).long(), e4m3)
        assert torch.equal(api.e2m1_encode(x).long(), nearest_even(a, e2m1_values()) | sign << 3)
        bf16 = nearest_even(a.clamp(max=2.0**128), bf16_values()) | sign << 15
        assert torch.equal(api.bf16_round(x).view(torch.int16).long() & 0xFFFF, bf16)

    def test_rounding_is_torchs_own_where_torch_saturates_nothing(self, generator):
        x = hard_fp32(generator, 1 << 18)
        assert same_bits(
            api.e4m3_encode(x), x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        )
        assert same_bits(api.bf16_round(x), x.to(torch.bfloat16))

    def test_values_of_all_codes(self):
        values = api.e4m3_decode(CODES).double()
        assert torch.equal(values[:0x7F], e4m3_values())
        assert torch.equal(values[0x80:0xFF], -e4m3_values())
        assert torch.isnan(values[[0x7F, 0xFF]]).all()
        assert torch.signbit(values[0x80])
        assert same_bits(
            api.e4m3_decode(CODES).nan_to_num(9),
            CODES.view(torch.float8_e4m3fn).float().nan_to_num(9),
        )
        powers = torch.ldexp(torch.ones(255, dtype=torch.float64), torch.arange(255) - 127)
        assert torch.equal(api.e8m0_decode(CODES)[:255].double(), powers)
        assert torch.isnan(api.e8m0_decode(CODES)[255])
        assert torch.equal(api.e2m1_decode(CODES[:8]).double(), e2m1_values())
        assert torch.equal(api.e2m1_decode(CODES[8:16]).double(), -e2m1_values())

    def test_every_code_is_its_own_values_code(self):
        known = CODES[(CODES & 0x7F) != 0x7F]
        assert torch.equal(api.e4m3_encode(api.e4m3_decode(known)), known)
        assert torch.equal(api.e2m1_encode(api.e2m1_decode(CODES[:16])), CODES[:16])
        assert torch.equal(api.e8m0_ceil(api.e8m0_decode(CODES[:255])), CODES[:255])

    def test_e8m0_rounds_up_and_never_to_nan(self):
        one_up = fp32_from_bits(fp32_bits(api.e8m0_decode(CODES[:254])) + 1)
        assert torch.equal(api.e8m0_ceil(one_up).long(), torch.arange(1, 255))
        edges = torch.tensor([3.4e38, float("inf"), 0.0, -1.0, 1e-45])
        assert api.e8m0_ceil(edges).tolist() == [254, 254, 0, 0, 0]

    def test_e2m1_is_exact_in_e4m3(self):
        assert [api.e2m1_as_e4m3(CODES[code]).item() for code in range(8)] == [
            *(0x00, 0x30, 0x38, 0x3C),
            *(0x40, 0x44, 0x48, 0x4C),
        ]
        same = api.e4m3_decode(api.e2m1_as_e4m3(CODES[:16]))
        assert same_bits(same, api.e2m1_decode(CODES[:16]))

    def test_the_even_element_lies_in_the_low_nibble(self):
        codes = torch.tensor([[1, 10, 15, 0]], dtype=torch.uint8)
        assert api.e2m1_pack(codes).tolist() == [[0xA1, 0x0F]]
        assert torch.equal(api.e2m1_unpack(api.e2m1_pack(codes)), codes)


class TestMxfp8Rule:
    @pytest.mark.parametrize(
        ("values", "n_bits", "scale", "payload"),
        [
            ((448,), 0x3F800000, 127, "7E"),
            ((449,), 0x3F804925, 128, "76"),
            ((896,), 0x40000000, 128, "7E"),
            ((1.0,), 0x3B124925, 119, "78"),
            ((3.5, -1.75, 0.1, -0.01), 0x3C000000, 120, "7E F6 55 BA"),
            ((6, -3, 1.5, 0.3), 0x3C5B6DB8, 121, "7C F4 6C 5A"),
            ((-7.84, 7.84), 0x3C8F5C2A, 122, "F8 78"),
            ((0.0,), 0x00000000, 0, "00"),
            ((1e-36,), 0x00184E4E, 0, "00"),
            ((448 * 2.0**-127,), 0x00400000, 0, "00"),
            ((449 * 2.0**-127,), 0x00402492, 1, "76"),
            ((448 * 2.0**-126,), 0x00800000, 1, "7E"),
            ((3e38,), 0x7B00F7F2, 247, "76"),
        ],
    )
    def test_golden_groups(self, values, n_bits, scale, payload):
        x = group(*values)
        n = x.abs().max() * fp32_from_bits(torch.tensor(rules.INVERSE_E4M3_MAX_BITS))
        assert fp32_bits(n).item() == n_bits
        q, scales = api.mxfp8_quantise(x)
        wanted = list(bytes.fromhex(payload))
        assert scales.tolist() == [scale]
        assert q.view(torch.uint8)[: len(wanted)].tolist() == wanted
        assert int(q.view(torch.uint8)[len(wanted) :].max()) == 0

    def test_powers_of_two_times_448_take_just_that_power(self):
        for power in range(-118, 119):
            q, scales = api.mxfp8_quantise(group(448 * 2.0**power))
            assert (q.view(torch.uint8)[0].item(), scales.item()) == (0x7E, 127 + power)

    def test_a_tiny_group_keeps_its_signs_only(self):
        q, scales = api.mxfp8_quantise(group(1e-36, -1e-36))
        assert scales.item() == 0
        assert q.view(torch.uint8)[:2].tolist() == [0x00, 0x80]

    def test_no_code_saturates_and_each_is_the_nearest(self, generator):
        device = generator.device
        x = torch.randn((600, 32), generator=generator, device=device)
        power = torch.randint(-60, 60, (600, 1), generator=generator, device=device)
        x = torch.ldexp(x, power).cpu()
        q, scales = api.mxfp8_quantise(x)
        scale = torch.ldexp(torch.ones(600, 1, dtype=torch.float64), scales.int() - 127)
        assert bool((x.double().abs().amax(1, keepdim=True) <= 448 * scale).all())
        wanted = nearest_even((x.double() / scale).abs().flatten(), e4m3_values())
        assert torch.equal((q.view(torch.uint8) & 0x7F).long().flatten(), wanted)
        assert same_bits(api.mxfp8_dequantise(q, scales).double(), q.double() * scale)

    @pytest.mark.parametrize(
        ("value", "scale", "payload"), [(1e-36, 1, 0x6B), (448 * 2.0**-127, 1, 0x76)]
    )
    def test_the_b12x_rule_knows_no_subnormal_exception(self, value, scale, payload):
        q, scales = rules.mxfp8_quantise(group(value), "b12x")
        assert (scales.item(), q.view(torch.uint8)[0].item()) == (scale, payload)

    def test_the_b12x_rows_kernel_writes_127_for_zeros(self):
        q, scales = rules.mxfp8_quantise(group(0.0, -0.0), "b12x_rows")
        assert (scales.item(), q.view(torch.uint8)[:2].tolist()) == (127, [0, 0x80])

    def test_the_guard_fires_wherever_rules_differ(self, generator):
        device = generator.device
        x = torch.randn((4000, 32), generator=generator, device=device)
        power = torch.randint(-140, 0, (4000, 1), generator=generator, device=device)
        x = torch.ldexp(x.double(), power).float()
        x[::7] = 0
        (q, s), *others = (
            rules.mxfp8_quantise(x, rule) for rule in ("canonical", "b12x", "b12x_rows")
        )
        differ = torch.zeros(4000, dtype=torch.bool, device=device)
        for other, other_scales in others:
            differ |= (other_scales != s)[:, 0]
            differ |= (other.view(torch.uint8) != q.view(torch.uint8)).any(1)
        assert bool(differ.any())
        assert bool((s[differ] == 0).all())
        assert api.rules_may_differ(s)
        assert not api.rules_may_differ(s[s[:, 0] != 0])

    def test_a_group_is_32_columns(self):
        with pytest.raises(KernelArgumentError, match="K = 48, expected a multiple of 32"):
            api.mxfp8_quantise(torch.zeros(2, 48))

    def test_what_the_rule_does_not_know_is_refused(self):
        with pytest.raises(
            KernelArgumentError, match="x: dtype float64, expected bfloat16 or float"
        ):
            api.mxfp8_quantise(torch.zeros(2, 32, dtype=torch.float64))
        with pytest.raises(
            KernelArgumentError, match="rule 'own', expected one of canonical, b12x"
        ):
            api.mxfp8_quantise(torch.zeros(2, 32), "own")

    def test_scales_that_would_be_stretched_over_groups_are_refused(self):
        q, scales = api.mxfp8_quantise(torch.ones(2, 64))
        with pytest.raises(KernelArgumentError, match=r"scales: shape \[2, 1\], expected \[2, 2\]"):
            api.mxfp8_dequantise(q, scales[:, :1])
        with pytest.raises(KernelArgumentError, match="scales: dtype float32, expected uint8"):
            api.mxfp8_dequantise(q, scales.float())


class TestScaleLayouts:
    @pytest.mark.parametrize(
        ("row", "at", "groups", "offset"),
        [
            (0, 1, 4, 1),
            (1, 0, 4, 16),
            (32, 0, 4, 4),
            (33, 0, 4, 20),
            (127, 3, 4, 511),
            (0, 4, 18, 512),
            (128, 0, 4, 512),
            (128, 0, 18, 2560),
            (128, 0, 20, 2560),
            (128, 0, 160, 20480),
            (129, 5, 18, 3089),
            (129, 5, 20, 3089),
            (129, 5, 160, 21009),
        ],
    )
    def test_golden_offsets(self, row, at, groups, offset):
        assert api.swizzled_offset(row, at, groups) == offset

    @pytest.mark.parametrize(
        ("rows", "groups"), [(1, 1), (128, 4), (129, 5), (300, 18), (131, 160), (0, 4)]
    )
    def test_both_forms_agree_and_come_back(self, rows, groups, generator):
        device = generator.device
        linear = torch.randint(1, 255, (rows, groups), generator=generator, device=device)
        linear = linear.to(torch.uint8)
        swizzled = api.swizzle(linear)
        wanted = torch.zeros(api.swizzled_bytes(rows, groups), dtype=torch.uint8)
        for row, values in enumerate(linear.tolist()):
            for at, value in enumerate(values):
                wanted[api.swizzled_offset(row, at, groups)] = value
        assert same_bits(swizzled, wanted)
        assert same_bits(api.unswizzle(swizzled, rows, groups), linear)

    def test_a_cut_of_128_rows_is_a_cut_of_the_scales(self, generator):
        linear = torch.randint(0, 255, (384, 18), generator=generator, device=generator.device)
        linear = linear.to(torch.uint8)
        tile = api.swizzled_bytes(128, 18)
        assert same_bits(api.swizzle(linear)[tile : 2 * tile], api.swizzle(linear[128:256]))

    def test_another_number_of_bytes_is_refused(self):
        with pytest.raises(KernelArgumentError, match=r"shape \[512\], expected \[2560\]"):
            api.unswizzle(torch.zeros(512, dtype=torch.uint8), 3, 18)

    def test_a_grid_becomes_a_byte_per_row(self):
        grid = torch.tensor([[1.0, 0.5, 2.0**-126], [2.0**127, 4.0, 1.0]])
        weight = torch.ones(64, 96).to(torch.float8_e4m3fn)
        bytes_ = api.e8m0_from_grid(grid, weight)
        assert bytes_.shape == (64, 3)
        assert bytes_[[0, 31]].tolist() == [[127, 126, 1]] * 2
        assert bytes_[[32, 63]].tolist() == [[254, 129, 127]] * 2

    @pytest.mark.parametrize(
        "bad", [0.0, -1.0, 3.0, 1e-40, float("nan"), float("inf"), 2.0**-127, 1.0000001]
    )
    def test_a_bad_scale_is_refused_over_weights_and_mended_over_zeros(self, bad, caplog):
        grid = torch.tensor([[1.0, 2.0], [bad, 4.0]])
        weight = torch.ones(64, 64).to(torch.float8_e4m3fn)
        with pytest.raises(KernelArgumentError, match=r"grid \[1, 0\] = .* expected a positive po"):
            api.e8m0_from_grid(grid, weight)
        weight[32:, :32] = 0.0
        weight[40, 3] = -0.0
        with caplog.at_level(logging.WARNING, logger=scales.__name__):
            assert api.e8m0_from_grid(grid, weight)[[0, 32]].tolist() == [[127, 128], [127, 129]]
        assert "1 bad scales over blocks of zeros became 1.0" in caplog.text
        weight[63, 31] = 2.0**-9
        with pytest.raises(KernelArgumentError, match=r"grid \[1, 0\]"):
            api.e8m0_from_grid(grid, weight)

    def test_a_grid_of_one_axis_is_refused(self):
        weight = torch.ones(64, 32).to(torch.float8_e4m3fn)
        with pytest.raises(KernelArgumentError, match=r"grid: shape \[2\], expected \[any, any\]"):
            api.e8m0_from_grid(torch.ones(2), weight)

    def test_padding_of_another_dtype_is_refused(self):
        with pytest.raises(KernelArgumentError, match="scales: dtype float32, expected uint8"):
            api.pad_e8m0(torch.ones(2, 2), 2, 4)
        with pytest.raises(KernelArgumentError, match="grid: dtype float16, expected float32"):
            api.pad_grid(torch.ones(2, 2).half(), 2, 4)
        with pytest.raises(KernelArgumentError, match=r"grid: shape \[2\], expected \[any, any\]"):
            api.pad_grid(torch.ones(2), 2, 4)

    def test_padding_is_one_in_both_forms(self):
        padded = api.pad_e8m0(torch.tensor([[3, 4]], dtype=torch.uint8), 2, 4)
        assert padded.tolist() == [[3, 4, 127, 127], [127] * 4]
        assert api.pad_grid(torch.tensor([[0.5]]), 1, 2).tolist() == [[0.5, 1.0]]
        with pytest.raises(KernelArgumentError, match=r"shape \[1, 1\] to \[0, 2\]"):
            api.pad_grid(torch.tensor([[0.5]]), 0, 2)
