"""fp8 twins of bf16 weights: their exponents, what is exact, what is refused."""

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.numerics import api, twins


class TestTwins:
    def test_a_twin_without_exponents_is_refused(self):
        twin = api.fp8_twin(torch.ones(32, 32, dtype=torch.bfloat16))
        with pytest.raises(
            KernelArgumentError, match=r"exponents: shape \[0, 1\], expected at least"
        ):
            api.dequantise_twin(twin.q, twin.exponents[:0])

    @pytest.mark.parametrize(
        ("amax", "exponent"), [(448, 0), (447, 0), (449, 1), (1.0, -8), (0.875, -9), (0, -134)]
    )
    def test_golden_exponents(self, amax, exponent):
        assert twins.ceil_log2_of_448ths(torch.tensor([float(amax)])).item() == exponent

    def test_the_exponent_is_exact_at_every_bf16(self):
        amax = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
        ratio = amax.double().clamp(min=2.0**-126) / 448
        wanted = torch.frexp(ratio)[1] - (torch.frexp(ratio)[0] == 0.5).int()
        assert torch.equal(twins.ceil_log2_of_448ths(amax).int(), wanted)

    def test_a_zero_block_is_clamped(self):
        twin = api.fp8_twin(torch.zeros(32, 32, dtype=torch.bfloat16))
        assert twin.exponents.tolist() == [[0]]
        assert twin.exact

    @pytest.mark.parametrize("block_rows", [1, 32])
    def test_what_came_from_e4m3_blocks_is_exact(self, block_rows, generator):
        device = generator.device
        q = torch.randint(0, 127, (64, 96), generator=generator, device=device)
        q |= torch.randint(0, 2, q.shape, generator=generator, device=device) << 7
        q = q.to(torch.uint8).view(torch.float8_e4m3fn)
        shape = (64 // block_rows, 3)
        exponents = torch.randint(80, 140, shape, generator=generator, device=device)
        weight = api.dequantise_twin(q, exponents.to(torch.uint8))
        twin = api.fp8_twin(weight, block_rows)
        assert twin.exact
        assert twin.exponents.shape == shape
        assert api.require_exact("weight", twin) is twin
        assert torch.equal(api.dequantise_twin(twin.q, twin.exponents), weight)

    @pytest.mark.parametrize("block_rows", [1, 32])
    def test_a_genuine_bf16_matrix_is_close_and_not_exact(self, block_rows, generator):
        weight = torch.randn((1056, 64), generator=generator, device=generator.device)
        weight = weight.to(torch.bfloat16)
        twin = api.fp8_twin(weight, block_rows)
        assert not twin.exact
        error = api.dequantise_twin(twin.q, twin.exponents).double() - weight.double()
        assert float(error.norm() / weight.double().norm()) < 0.04
        with pytest.raises(KernelArgumentError, match="lm_head: its fp8 twin decodes to other"):
            api.require_exact("lm_head", twin)

    def test_one_wrong_element_anywhere_is_not_exact(self):
        weight = torch.ones(1056, 32, dtype=torch.bfloat16)
        assert api.fp8_twin(weight).exact
        weight[1055, 31] = 1.0078125
        assert not api.fp8_twin(weight).exact
        weight[1055, 31] = float("nan")
        assert not api.fp8_twin(weight).exact
        weight[1055, 31] = 1.0
        weight[0, 0] = 1.0078125
        assert not api.fp8_twin(weight).exact

    def test_shapes_are_checked_with_both_values(self):
        bf16 = torch.bfloat16
        with pytest.raises(KernelArgumentError, match="N = 33, expected a multiple of 32"):
            api.fp8_twin(torch.zeros(33, 32, dtype=bf16))
        with pytest.raises(KernelArgumentError, match="K = 40, expected a multiple of 32"):
            api.fp8_twin(torch.zeros(32, 40, dtype=bf16))
        with pytest.raises(KernelArgumentError, match="dtype float32, expected bfloat16"):
            api.fp8_twin(torch.zeros(32, 32))
        assert api.fp8_twin(torch.zeros(0, 32, dtype=bf16)).exact
