"""The device functions against torch and against a search, and what the interpreter does wrong."""

import pytest
import torch
import triton
import triton.language as tl
from sparkserve_kernels.numerics import kernel, reference
from sparkserve_kernels.numerics.elements import bf16_truncate
from triton.runtime.errors import InterpreterError

from tests.kernels.numeric import same_bits
from tests.kernels.rounding_search import (
    bf16_values,
    e2m1_values,
    e4m3_values,
    hard_fp32,
    nearest_even,
)

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU: all 2^32 values, its conversion")
interpreted_only = pytest.mark.skipif(GPU, reason="says what the interpreter does")
BLOCK = 1024 if GPU else 1 << 16


@triton.jit
def of_fp32(x_ptr, out_ptr, size, WHAT: tl.constexpr, INTERPRETED: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=at < size, other=0.0)
    if WHAT == "e4m3_bits":
        y = kernel.e4m3_bits(x)
    elif WHAT == "e4m3_bits_on":
        y = kernel.e4m3_bits_on(x, INTERPRETED)
    elif WHAT == "to_e4m3":
        y = kernel.to_e4m3(x).to(tl.uint8, bitcast=True)
    elif WHAT == "bf16_bits":
        y = kernel.bf16_bits(x)
    elif WHAT == "to_bf16":
        y = kernel.to_bf16(x).to(tl.uint16, bitcast=True)
    elif WHAT == "round_bf16":
        y = (kernel.round_bf16(x).to(tl.uint32, bitcast=True) >> 16).to(tl.uint16)
    elif WHAT == "e2m1_code":
        y = kernel.e2m1_code(x)
    elif WHAT == "e2m1_code_scaled":
        y = kernel.e2m1_code_scaled(x * 0.171875, tl.full((N,), 0.171875, tl.float32))
    elif WHAT == "mxfp8_scale_byte":
        y = kernel.mxfp8_scale_byte(tl.abs(x)).to(tl.uint8)
    tl.store(out_ptr + at, y, mask=at < size)


@triton.jit
def of_codes(x_ptr, out_ptr, WHAT: tl.constexpr, INTERPRETED: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    if WHAT == "e4m3_value":
        y = kernel.e4m3_value(x)
    elif WHAT == "e4m3_to_fp16_on":
        y = kernel.e4m3_to_fp16_on(x, INTERPRETED).to(tl.float32)
    elif WHAT == "e4m3_to_fp16_on of fp8":
        y = kernel.e4m3_to_fp16_on(x.to(tl.float8e4nv, bitcast=True), INTERPRETED).to(tl.float32)
    elif WHAT == "e8m0_value":
        y = kernel.e8m0_value(x)
    elif WHAT == "exponent_value of uint32":
        y = kernel.exponent_value(x.to(tl.uint32))
    elif WHAT == "exponent_value of int32":
        y = kernel.exponent_value(x.to(tl.int32))
    elif WHAT == "e2m1_value":
        y = kernel.e2m1_value(x)
    elif WHAT == "e2m1_to_e4m3_bits":
        y = kernel.e2m1_to_e4m3_bits(x).to(tl.float32)
    elif WHAT == "mxfp8_multiplier":
        y = kernel.mxfp8_multiplier(x.to(tl.int32))
    elif WHAT == "to_fp32":
        y = kernel.to_fp32(x)
    elif WHAT == "e2m1_pack_unpack":
        rows = tl.reshape(x & 15, (N // 32, 32))
        y = kernel.e2m1_unpack(kernel.e2m1_pack(rows, N // 32, 32), N // 32, 16).to(tl.float32)
        y = tl.reshape(y, (N,))
    tl.store(out_ptr + at, y)


def device_codes(what, x, dtype):
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    grid = (-(-len(x) // BLOCK),)
    of_fp32[grid](x, out, len(x), WHAT=what, INTERPRETED=not GPU, N=BLOCK, enable_fp_fusion=False)
    return out


def device_values(what, codes):
    out = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
    block = min(len(codes), BLOCK)
    of_codes[(len(codes) // block,)](codes, out, WHAT=what, INTERPRETED=not GPU, N=block)
    return out


class TestRounding:
    """2^20 random fp32, the neighbours of every tie, and edges; then every 16-bit pattern."""

    @pytest.fixture
    def x(self, generator):
        return hard_fp32(generator, 1 << 20)

    @pytest.mark.parametrize("what", ["e4m3_bits", "e4m3_bits_on", "to_e4m3"])
    def test_e4m3(self, what, x):
        have = device_codes(what, x, torch.uint8)
        assert same_bits(have, x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
        small = x[-20000:].cpu()
        wanted = nearest_even(small.double().abs().clamp(max=448), e4m3_values())
        assert torch.equal(have[-20000:].cpu().long() & 0x7F, wanted)

    @pytest.mark.parametrize("what", ["bf16_bits", "to_bf16", "round_bf16"])
    def test_bf16(self, what, x):
        have = device_codes(what, x, torch.int16)
        assert same_bits(have, x.to(torch.bfloat16).view(torch.int16))
        small = x[-20000:].cpu()
        wanted = nearest_even(small.double().abs().clamp(max=2.0**128), bf16_values())
        assert torch.equal(have[-20000:].cpu().long() & 0x7FFF, wanted)

    def test_bf16_of_every_high_half(self, device):
        high = torch.arange(1 << 16, dtype=torch.int64, device=device) << 16
        for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
            x = (high + low).to(torch.int32).view(torch.float32)
            x = x[~torch.isnan(x)]
            have = device_codes("bf16_bits", x, torch.int16)
            assert same_bits(have, x.to(torch.bfloat16).view(torch.int16))

    def test_e2m1(self, x):
        have = device_codes("e2m1_code", x, torch.uint8).cpu().long()
        wanted = nearest_even(x.cpu().double().abs(), e2m1_values())
        assert torch.equal(have & 7, wanted)
        assert torch.equal(have >> 3, torch.signbit(x.cpu()).long())

    def test_e2m1_of_a_quotient_without_the_division(self, generator):
        x = hard_fp32(generator, 1 << 18)
        x = x[x.abs() < 1e30].to(torch.bfloat16).float()
        scaled = device_codes("e2m1_code_scaled", x, torch.uint8)
        assert same_bits(scaled, device_codes("e2m1_code", x, torch.uint8))

    def test_nan(self, device):
        x = torch.tensor([float("nan")] * 2, device=device)
        x[1] = -x[0]
        assert device_codes("e4m3_bits", x, torch.uint8).tolist() == [0x7F, 0x7F]
        assert device_codes("e4m3_bits_on", x, torch.uint8).tolist() == [0x7F, 0x7F]
        assert device_codes("bf16_bits", x, torch.int16).tolist() == [0x7FC0, 0x7FC0]
        assert device_codes("e2m1_code", x, torch.uint8)[0].item() == 7

    def test_the_scale_byte(self, x):
        x = torch.cat((x, x.new_tensor([2.0**-126 * 448, 2.0**-127 * 448, 2.0**-127 * 449])))
        have = device_codes("mxfp8_scale_byte", x, torch.uint8)
        assert same_bits(have.int(), reference.mxfp8_scale_byte(x.abs()))


class TestCodes:
    """Every code there is."""

    @pytest.mark.parametrize(
        "what", ["e4m3_value", "e8m0_value", "e2m1_value", "e2m1_to_e4m3_bits", "mxfp8_multiplier"]
    )
    def test_of_all_256_bytes(self, what, device):
        codes = torch.arange(256, dtype=torch.int32, device=device).to(torch.uint8)
        wanted = getattr(reference, what)(codes).float().nan_to_num(nan=1e30)
        assert same_bits(device_values(what, codes).nan_to_num(nan=1e30), wanted)

    @pytest.mark.parametrize("what", ["e4m3_value", "e4m3_to_fp16_on", "e4m3_to_fp16_on of fp8"])
    def test_e4m3_is_what_torch_calls_so(self, what, device):
        codes = torch.arange(256, dtype=torch.int32, device=device).to(torch.uint8)
        wanted = codes.view(torch.float8_e4m3fn).float()
        have = device_values(what, codes)
        assert same_bits(have.nan_to_num(nan=9), wanted.nan_to_num(nan=9))

    @pytest.mark.parametrize("dtype", ["uint32", "int32"])
    def test_an_exponent_is_a_scale_byte_whose_last_code_is_infinite(self, dtype, device):
        codes = torch.arange(256, dtype=torch.int32, device=device).to(torch.uint8)
        wanted = reference.e8m0_value(codes).float()
        wanted[255] = torch.inf
        assert same_bits(device_values(f"exponent_value of {dtype}", codes), wanted)

    def test_packing_comes_back(self, device):
        codes = torch.arange(256, dtype=torch.int32, device=device).to(torch.uint8)
        assert torch.equal(device_values("e2m1_pack_unpack", codes), (codes & 15).float())

    def test_bf16_widens_exactly(self, device):
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=device).to(torch.int16)
        values = bits.view(torch.bfloat16)
        have = device_values("to_fp32", values)
        known = ~torch.isnan(values)
        assert same_bits(have[known], values.float()[known])
        assert torch.isnan(have[~known]).all()


@triton.jit
def count_differences(count_ptr, N: tl.constexpr):
    bits = tl.program_id(0).to(tl.uint32) * N + tl.arange(0, N).to(tl.uint32)
    x = bits.to(tl.float32, bitcast=True)
    ours, theirs = kernel.e4m3_bits(x), kernel.e4m3_bits_on(x, False)
    tl.atomic_add(count_ptr, tl.sum((ours != theirs).to(tl.int32), axis=0))
    bf16 = x.to(tl.bfloat16).to(tl.uint16, bitcast=True)
    same = (kernel.bf16_bits(x) == bf16) | (x != x)
    tl.atomic_add(count_ptr + 1, tl.sum((~same).to(tl.int32), axis=0))


@needs_gpu
def test_the_gpus_conversions_are_ours_at_all_fp32_values(device):
    count = torch.zeros(2, dtype=torch.int32, device=device)
    count_differences[(2**32 // 4096,)](count, N=4096, enable_fp_fusion=False)
    assert count.tolist() == [0, 0]


@triton.jit
def cast(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty))


@triton.jit
def square(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), x * x)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    a, b = tl.load(a_ptr + row * N + column), tl.load(b_ptr + row * N + column)
    tl.store(out_ptr + row * N + column, tl.dot(a, b))


@triton.jit
def scaled_product(a_ptr, b_ptr, scales_ptr, out_ptr, N: tl.constexpr):
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    a, b = tl.load(a_ptr + row * N + column), tl.load(b_ptr + row * N + column)
    scales = tl.load(scales_ptr + row * (N // 32) + tl.arange(0, N // 32)[None, :])
    out = tl.dot_scaled(a, scales, "e4m3", tl.trans(b), scales, "e4m3")
    tl.store(out_ptr + row * N + column, out)


@triton.jit
def assembly(x_ptr, out_ptr):
    y = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(x_ptr)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out_ptr, y)


def interpreted_cast(values, source, target):
    x = torch.tensor(values).to(source)
    out = torch.empty(len(x), dtype=target)
    cast[(1,)](x, out, N=len(x))
    return out


@interpreted_only
class TestTrapsOfTheInterpreter:
    """Facts about the Triton that is installed. One that turns red is good news: a rounding of our
    own may go. Until then kernels use the device functions above.
    """

    def test_fp32_to_bf16_truncates(self, generator):
        x = torch.randn(4096, generator=generator)
        out = torch.empty(4096, dtype=torch.bfloat16)
        cast[(1,)](x, out, N=4096)
        assert same_bits(out, bf16_truncate(x))
        assert 1800 < int((out != x.to(torch.bfloat16)).sum()) < 2300

    def test_fp32_to_e4m3_loses_the_carry_and_saturates_nothing(self):
        out = interpreted_cast([-7.84, 31.1, 500.0, 1.0], torch.float32, torch.float8_e4m3fn)
        assert out.float().tolist() == [-4.0, 16.0, 256.0, 1.0]

    def test_e4m3_nan_is_read_as_480(self):
        codes = torch.tensor([0x7F, 0xFF], dtype=torch.uint8).view(torch.float8_e4m3fn)
        out = torch.empty(2)
        cast[(1,)](codes, out, N=2)
        assert out.tolist() == [480.0, -480.0]

    def test_a_subnormal_bf16_is_read_as_another_number(self):
        x = torch.tensor([1, 0x40, 0x80, 0x8001], dtype=torch.int32).to(torch.int16)
        x = x.view(torch.bfloat16)
        out = torch.empty(4)
        cast[(1,)](x, out, N=4)
        assert (out == x.float()).tolist() == [False, False, True, False]

    def test_bf16_is_multiplied_by_its_raw_bits(self):
        x = torch.ones(4, dtype=torch.bfloat16)
        out = torch.empty(4, dtype=torch.bfloat16)
        square[(1,)](x, out, N=4)
        assert (out != 1).all()

    def test_a_dot_of_bf16_is_garbage(self):
        x = torch.ones((16, 16), dtype=torch.bfloat16)
        out = torch.empty((16, 16))
        product[(1,)](x, x, out, N=16)
        assert float(out.min()) > 1e6

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn])
    def test_a_dot_of_other_types_is_right(self, dtype, generator):
        a, b = (torch.randn((32, 32), generator=generator).to(dtype) for _ in range(2))
        out = torch.empty((32, 32))
        product[(1,)](a, b, out, N=32)
        assert torch.allclose(out.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)

    def test_a_block_scaled_dot_is_right(self, generator):
        a, b = (
            torch.randn((64, 64), generator=generator).to(torch.float8_e4m3fn) for _ in range(2)
        )
        scales = torch.randint(120, 134, (64, 2), generator=generator).to(torch.uint8)
        out = torch.empty((64, 64))
        scaled_product[(1,)](a, b, scales, out, N=64)
        scale = torch.exp2(scales.double() - 127).repeat_interleave(32, dim=1)
        wanted = (a.double() * scale) @ (b.double() * scale).t()
        assert float((out.double() - wanted).norm() / wanted.norm()) < 1e-6

    def test_inline_assembly_is_not_interpreted(self):
        x = torch.ones(1, dtype=torch.int32)
        with pytest.raises(InterpreterError, match="inline_asm"):
            assembly[(1,)](x, torch.empty_like(x))
