import dataclasses

import numpy as np
import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant
from sparkserve_kernels.split_k import SplitWorkspace
from sparkserve_kernels.twin_linear import api, reference
from sparkserve_kernels.twin_linear.shipped import LAYERS
from sparkserve_kernels.twin_linear.tiles import Tile, tile_for
from sparkserve_kernels.twin_linear.twin import (
    Twin,
    drop_weight,
    read_through,
    restore_weight,
    twin_of,
)

from tests.kernels.numeric import relative_l2, same_bits, untouched_zeros

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: too large for the interpreter"
)

SMALL = (
    Tile("wide", 16, 32, 64, 4, 3),
    Tile("wide", 16, 32, 64, 4, 3, split=3),
    Tile("grouped", 8, 32, 128, 4, 4),
    Tile("grouped", 8, 32, 128, 4, 4, split=2),
)


def checkpoint_weight(shape, generator, block_rows=32):
    """bf16 values that come from e4m3 blocks, as wo_a's do."""
    groups, columns, k = shape
    device = generator.device
    q = torch.randint(0, 256, shape, generator=generator, device=device)
    q = torch.where(q & 0x7F == 0x7F, 3, q).to(torch.uint8).view(torch.float8_e4m3fn)
    grid = (groups, columns // block_rows, k // 32)
    exponents = torch.randint(110, 122, grid, generator=generator, device=device)
    twin = Twin(q, exponents.to(torch.uint8), exact=True)
    return restore_weight(twin), twin


def draw(shape, generator):
    x = torch.randn(shape, generator=generator, device=generator.device)
    return x.to(torch.bfloat16)


@pytest.fixture
def products_in_double(monkeypatch):
    """The interpreter's products in fp64, rounded once.

    Its fp32 products are the CPU's BLAS, which adds in an order of its own for every shape: on an
    AMD EPYC two tile widths differ in the last bit, by no doing of the kernel.
    """
    matmul = np.matmul

    def rounded(a, b, dtype=np.float32):
        return matmul(a.astype(np.float64), b.astype(np.float64)).astype(dtype)

    monkeypatch.setattr(np, "matmul", rounded)


def run(x, weight, out_dtype, tile):
    """One launch on a twin, or on a bf16 weight."""
    if isinstance(weight, Twin):
        operands = weight.q, weight.exponents
    else:
        grid = (*weight.shape[:2], weight.shape[2] // 32)
        operands = weight, torch.full(grid, 127, dtype=torch.uint8, device=weight.device)
    groups, columns = operands[0].shape[:2]
    out = torch.empty((len(x), groups, columns), dtype=out_dtype, device=x.device)
    api.launch(x, operands, (out, None), tile)
    return out


class TestTwin:
    def test_a_checkpoint_weight_comes_back_to_the_last_bit(self, generator):
        weight, _ = checkpoint_weight((2, 64, 96), generator)
        twin = api.twin_of(weight, exact=True)
        assert twin.exact
        assert same_bits(api.restore_weight(twin), weight)

    def test_a_genuine_bf16_matrix_is_not_exact_and_is_refused_where_exactness_is_asked(
        self, generator
    ):
        weight = draw((64, 64), generator)
        assert not api.twin_of(weight).exact
        with pytest.raises(KernelArgumentError, match="expected an exact one"):
            api.twin_of(weight, exact=True)

    @pytest.mark.parametrize("block_rows", [1, 32])
    def test_exponents_are_per_row_or_per_grid(self, generator, block_rows):
        twin = api.twin_of(draw((64, 64), generator), block_rows=block_rows)
        assert twin.block_rows == block_rows
        assert tuple(twin.exponents.shape) == (1, 64 // block_rows, 2)

    def test_a_dropped_weight_keeps_its_shape_holds_one_element_and_reads_as_nan(self, generator):
        weight, twin = checkpoint_weight((2, 64, 32), generator)
        tag = drop_weight(weight, twin)
        other = drop_weight(weight, twin)
        assert tag.shape == weight.shape
        assert tag.stride() == (0, 0, 0)
        assert tag.untyped_storage().nbytes() == 2
        assert tag.data_ptr() != other.data_ptr()
        assert bool(tag.isnan().all())
        assert same_bits(restore_weight(twin), weight)

    def test_a_weight_is_not_dropped_for_a_twin_of_other_bits(self, generator):
        weight, twin = checkpoint_weight((1, 32, 32), generator)
        weight[0, 3, 5] = 1.00390625
        with pytest.raises(KernelArgumentError, match="restores other bits"):
            drop_weight(weight, twin)

    def test_a_weight_is_read_through_its_layer_whatever_its_layout(self, generator):
        weight = checkpoint_weight((1, 32, 96), generator)[0][0]
        read = read_through(lambda x: x.float() @ weight.float().T, 96, like=weight, rows=40)
        assert torch.equal(read, weight)

    def test_blocks_of_no_rows_and_a_weight_of_no_groups_are_refused(self, generator):
        weight = draw((32, 32), generator)
        with pytest.raises(KernelArgumentError, match="block_rows = 0, expected at least 1"):
            twin_of(weight, block_rows=0)
        with pytest.raises(KernelArgumentError, match=r"weight: shape \[0, 32, 32\], expected at"):
            twin_of(weight.unsqueeze(0)[:0])

    def test_a_weight_of_another_shape_dtype_or_device_is_not_dropped(self, generator):
        weight, twin = checkpoint_weight((1, 64, 32), generator)
        with pytest.raises(
            KernelArgumentError, match=r"weight: shape \[1, 32, 32\], expected \[1, 6"
        ):
            drop_weight(weight[:, :32], twin)
        with pytest.raises(KernelArgumentError, match=r"weight: dtype float16, expected bfloat16"):
            drop_weight(weight.half(), twin)
        with pytest.raises(KernelArgumentError, match="weight on meta, expected"):
            drop_weight(weight.to("meta"), twin)

    def test_a_layer_is_read_by_at_least_one_row_and_keeps_its_width(self, generator):
        like = draw((1, 8), generator)
        with pytest.raises(KernelArgumentError, match="rows = 0, expected at least 1"):
            read_through(lambda x: x, 8, like=like, rows=0)
        with pytest.raises(KernelArgumentError, match=r"result: shape \[2, 2\], expected \[2, 3\]"):
            read_through(lambda x: x[:, : len(x)], 8, like=like, rows=3)

    def test_a_layer_that_gives_more_than_bf16_holds_is_refused(self, generator):
        weight = torch.full((4, 8), 1.001953125, device=generator.device)
        with pytest.raises(KernelArgumentError, match="beyond bf16"):
            read_through(lambda x: x.float() @ weight.T, 8, like=weight)


class TestProduct:
    @pytest.mark.parametrize("tile", SMALL, ids=str)
    @pytest.mark.parametrize(("rows", "columns"), [(1, 32), (7, 96), (17, 64)])
    def test_it_is_that_of_float64(self, generator, tile, rows, columns):
        weight, twin = checkpoint_weight((2, columns, 416), generator)
        x = draw((rows, 2, 416), generator)
        have = run(x, twin, torch.float32, tile)
        want = torch.einsum("mgk,gnk->mgn", x.double(), weight.double())
        assert relative_l2(have, want) < 1e-6

    @pytest.mark.parametrize("tile", SMALL, ids=str)
    def test_the_twin_gives_the_bits_of_the_bf16_weight_in_the_same_tile(self, generator, tile):
        weight, twin = checkpoint_weight((2, 64, 352), generator)
        x = draw((5, 2, 352), generator)
        assert same_bits(run(x, twin, torch.float32, tile), run(x, weight, torch.float32, tile))

    def test_exponents_per_row_are_followed(self, generator):
        weight, twin = checkpoint_weight((1, 64, 256), generator, block_rows=1)
        x = draw((3, 256), generator)
        want = x.double() @ weight[0].double().T
        assert relative_l2(api.twin_linear(x, twin), want) < 2.5e-3

    def test_groups_past_two_to_the_31_elements_are_addressed_right(self, device):
        far = (1 << 30) + 32
        memory = untouched_zeros(2 * (2 * far + 32), device).view(torch.bfloat16)
        x = memory.as_strided((1, 3, 32), (32, far, 1))
        x[0, 2] = 1.0
        twin = twin_of(torch.ones((3, 32, 32), dtype=torch.bfloat16, device=device))
        have = api.twin_linear(x, twin, out_dtype=torch.float32)
        assert have[0].unique(dim=1).tolist() == [[0.0], [0.0], [32.0]]

    def test_gaps_between_rows_and_groups_change_no_bit(self, generator):
        _, twin = checkpoint_weight((2, 32, 128), generator)
        wide = draw((5, 3, 160), generator)
        x = wide[:, 1:, 16:144]
        assert not x.is_contiguous()
        assert same_bits(api.twin_linear(x, twin), api.twin_linear(x.contiguous(), twin))

    @pytest.mark.parametrize("tile", SMALL, ids=str)
    def test_permuted_rows_give_permuted_bits_and_runs_repeat(self, generator, tile):
        _, twin = checkpoint_weight((1, 32, 256), generator)
        x = draw((9, 1, 256), generator)
        order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
        whole = run(x, twin, torch.bfloat16, tile)
        assert same_bits(run(x[order], twin, torch.bfloat16, tile), whole[order])
        assert same_bits(run(x, twin, torch.bfloat16, tile), whole)

    @pytest.mark.usefixtures("products_in_double")
    @pytest.mark.parametrize("kind", ["wide", "grouped"])
    def test_unsplit_tiles_give_one_row_the_same_bits_at_every_width(self, generator, kind):
        _, twin = checkpoint_weight((1, 64, 256), generator)
        x = draw((16, 1, 256), generator)
        one = run(x[:1], twin, torch.float32, Tile(kind, 16, 32, 128, 4, 3))
        many = run(x, twin, torch.float32, Tile(kind, 32, 64, 128, 4, 3))
        assert same_bits(one, many[:1])

    @pytest.mark.parametrize("tile", SMALL, ids=str)
    def test_small_large_and_empty_rows_keep_their_scale(self, generator, tile):
        weight, twin = checkpoint_weight((1, 32, 128), generator)
        x = draw((4, 1, 128), generator)
        x[0] *= 2.0**-60
        x[1] *= 2.0**60
        x[2] = 0.0
        have = run(x, twin, torch.float32, tile)
        want = torch.einsum("mgk,gnk->mgn", x.double(), weight.double())
        for row in (0, 1, 3):
            assert relative_l2(have[row], want[row]) < 1e-6
        assert bool((have[2] == 0).all())

    @pytest.mark.parametrize("tile", SMALL, ids=str)
    def test_nan_stays_in_its_row(self, generator, tile):
        _, twin = checkpoint_weight((1, 32, 128), generator)
        x = draw((3, 1, 128), generator)
        clean = run(x, twin, torch.float32, tile)
        x[1, 0, 7] = float("nan")
        have = run(x, twin, torch.float32, tile)
        assert bool(have[1].isnan().all())
        assert same_bits(have[[0, 2]], clean[[0, 2]])

    def test_the_workspace_is_left_ready_for_the_next_call(self, generator, device):
        _, twin = checkpoint_weight((1, 32, 512), generator)
        x = draw((3, 1, 512), generator)
        workspace = SplitWorkspace.on(device, cells=1 << 14, tiles=64)
        tile = Tile("wide", 16, 32, 64, 4, 3, split=4)
        out = [torch.empty((3, 1, 32), dtype=torch.bfloat16, device=device) for _ in range(2)]
        for target in out:
            api.launch(x, (twin.q, twin.exponents), (target, None), tile, workspace=workspace)
        assert same_bits(*out)
        assert int(workspace.arrivals.abs().sum()) == 0


class TestTiles:
    @pytest.mark.parametrize("family", ["spark", "hopper"])
    @pytest.mark.parametrize("rows", [1, 8, 9, 40, 100, 192, 500])
    def test_any_number_of_ranks_takes_the_forms_of_four(self, family, rows):
        shares = {
            "wo_a": [(4, 1024, 4096), (1, 1024, 4096)],
            "draft head": [(1, 43136, 5120), (1, 16160, 5120)],
            "draft main_proj": [(1, 1707, 15360), (1, 640, 15360)],
        }
        for layer, shapes in shares.items():
            tile = tile_for(family, rows, LAYERS[layer])
            assert all(tile_for(family, rows, shape) == tile for shape in shapes)
            assert tile.split == 1 or layer != "draft head"


class TestMxfp8Epilogue:
    @pytest.mark.parametrize(("rows", "columns"), [(1, 96), (6, 64), (17, 96)])
    def test_it_quantises_what_the_bf16_epilogue_writes(self, generator, rows, columns):
        # 2 * 64 columns fill the layout's four groups, so its memory is not cleared beforehand.
        _, twin = checkpoint_weight((2, columns, 128), generator)
        x = draw((rows, 2, 128), generator)
        plain = api.twin_linear(x, twin)
        q, scales = api.twin_linear_mxfp8(x, twin)
        want_q, want_scales = mxfp8_quant(plain.flatten(1).contiguous(), layout="128x4")
        assert same_bits(q.view(torch.uint8), want_q.view(torch.uint8))
        assert same_bits(scales, want_scales)

    def test_more_than_128_rows_fill_two_tiles_of_scales(self, generator):
        _, twin = checkpoint_weight((1, 32, 32), generator)
        x = draw((130, 32), generator)
        q, scales = api.twin_linear_mxfp8(x, twin)
        want_q, want_scales = reference.twin_linear_mxfp8(x, twin)
        assert float((q.float() != want_q.float()).float().mean()) < 0.02
        assert scales.shape == want_scales.shape
        assert bool((scales.view(2, 32, 4, 4)[1, 2:, :, :] == 0).all())


class TestRefusals:
    def test_each_names_both_values(self, generator, device):
        _, twin = checkpoint_weight((2, 32, 64), generator)
        x = draw((3, 2, 64), generator)
        with pytest.raises(KernelArgumentError, match=r"x: shape \[3, 64\], expected \[any, 2, 64"):
            api.twin_linear(x[:, 0], twin)
        with pytest.raises(KernelArgumentError, match="dtype float32, expected bfloat16"):
            api.twin_linear(x.float(), twin)
        with pytest.raises(KernelArgumentError, match="3 rows, expected at most rows_hint = 2"):
            api.twin_linear(x, twin, rows_hint=2)
        with pytest.raises(KernelArgumentError, match="float16, expected bfloat16 or float32"):
            api.twin_linear(x, twin, out_dtype=torch.float16)
        odd = dataclasses.replace(twin, exponents=twin.exponents[:, :, :1])
        with pytest.raises(KernelArgumentError, match=r"twin.exponents: shape \[2, 1, 1\]"):
            api.twin_linear(x, odd)

    def test_nothing_in_nothing_out(self, generator):
        _, twin = checkpoint_weight((2, 32, 64), generator)
        x = draw((0, 2, 64), generator)
        assert api.twin_linear(x, twin).shape == (0, 2, 32)
        q, scales = api.twin_linear_mxfp8(x, twin)
        assert q.shape == (0, 64)
        assert scales.numel() == 0


@needs_gpu
class TestOnTheGpu:
    @pytest.mark.parametrize("layer", sorted(LAYERS))
    @pytest.mark.parametrize("rows", [1, 5, 6, 16, 40])
    def test_real_layers_against_float64_and_the_bf16_kernel(self, generator, layer, rows):
        groups, columns, k = LAYERS[layer]
        shape = (groups, min(columns, 4096), k)
        weight, twin = checkpoint_weight(shape, generator)
        x = draw((rows, groups, k), generator)
        tile = tile_for("hopper", rows, LAYERS[layer])
        have = run(x, twin, torch.float32, tile)
        want = torch.einsum("mgk,gnk->mgn", x.double(), weight.double())
        assert relative_l2(have, want) < 1e-5
        assert same_bits(have, run(x, weight, torch.float32, tile))

    @pytest.mark.parametrize(
        "tile", [Tile("wide", 16, 32, 256, 4, 3), Tile("wide", 64, 64, 128, 4, 3)]
    )
    def test_the_sparks_way_gives_the_bits_of_its_bf16_kernel(self, generator, tile):
        weight, twin = checkpoint_weight((2, 256, 4096), generator)
        x = draw((13, 2, 4096), generator)
        have = run(x, twin, torch.float32, tile)
        want = torch.einsum("mgk,gnk->mgn", x.double(), weight.double())
        assert relative_l2(have, want) < 1e-5
        assert same_bits(have, run(x, weight, torch.float32, tile))

    def test_a_captured_graph_replays_with_new_rows(self, generator):
        _, twin = checkpoint_weight(LAYERS["wo_a"], generator)
        x = draw((6, 2, 4096), generator)
        workspace = SplitWorkspace.on(x.device)
        api.twin_linear(x, twin, workspace=workspace)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = api.twin_linear(x, twin, workspace=workspace)
        for _ in range(3):
            x.copy_(draw((6, 2, 4096), generator))
            graph.replay()
            assert same_bits(out, api.twin_linear(x, twin))

    def test_a_weight_past_two_gibibytes_is_addressed_right(self, generator, device):
        columns, k = 65536, 40960
        q = torch.zeros((1, columns, k), dtype=torch.uint8, device=device)
        q[0, -1] = 0x38
        twin = Twin(
            q.view(torch.float8_e4m3fn),
            torch.full((1, columns // 32, k // 32), 127, dtype=torch.uint8, device=device),
            exact=True,
        )
        x = torch.ones((2, k), dtype=torch.bfloat16, device=device)
        have = api.twin_linear(x, twin, out_dtype=torch.float32)
        assert bool((have[:, -1] == k).all())
        assert bool((have[:, :-1] == 0).all())
