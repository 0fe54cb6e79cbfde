"""Routed experts on a GPU: decoding in assembly, real shapes, every capacity, graphs."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from sparkserve_kernels.moe_w4a8 import plan
from sparkserve_kernels.moe_w4a8.api import Geometry, make_scratch
from sparkserve_kernels.moe_w4a8.kernel_products import decode, decode_codes
from sparkserve_kernels.moe_w4a8.tiles import tile_for
from sparkserve_kernels.numerics.elements import e2m1_decode

from tests.kernels.experts import GPU_ONLY, Problem, problem
from tests.kernels.numeric import relative_l2, same_bits


@triton.jit
def _decode_all(
    packed_ptr, scale_ptr, low_ptr, high_ptr, CODES: tl.constexpr, PORTABLE: tl.constexpr
):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    packed, scale = tl.load(packed_ptr + at), tl.load(scale_ptr + at)
    if CODES:
        low, high = decode_codes(packed, PORTABLE)
    else:
        low, high = decode(packed, scale, PORTABLE)
    tl.store(low_ptr + at, low)
    tl.store(high_ptr + at, high)


@GPU_ONLY
@pytest.mark.parametrize("codes", [True, False])
def test_decoding_in_assembly_equals_its_portable_twin(codes, device):
    scales = torch.arange(64, 191, device=device, dtype=torch.int32)
    packed = torch.arange(256, device=device, dtype=torch.int32).to(torch.uint8)
    packed = packed.repeat_interleave(4).repeat(len(scales)).contiguous()
    scales = scales.repeat_interleave(1024).contiguous()
    dtype = torch.float16 if codes else torch.bfloat16
    results = []
    for portable in (True, False):
        low, high = (torch.empty_like(packed, dtype=dtype) for _ in range(2))
        _decode_all[(len(packed) // 1024,)](
            packed, scales, low, high, CODES=codes, PORTABLE=portable
        )
        results.append((low, high))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])
    value = e2m1_decode(packed & 15).double() * (0.015625 if codes else 1.0)
    if not codes:
        value = torch.ldexp(value, scales - 189)
    assert torch.equal(results[1][0].double(), value)


REAL = Geometry(experts=24, slots=6, hidden=5120, inter=576)


@GPU_ONLY
@pytest.mark.parametrize("geometry", [REAL, Geometry(128, 3, 5120, 576)], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 6, 96, 513])
def test_real_shapes_equal_float64(geometry, rows, generator):
    given = problem(rows, geometry, generator)
    assert relative_l2(given.call(), given.exact()) < 4e-3


@GPU_ONLY
def test_every_capacity_gives_the_same_rows(generator):
    """Within a bucket bit for bit, across buckets to a rounding of the sums."""
    given = problem(5, REAL, generator)
    want = given.call()
    for capacity in plan.CAPACITIES:
        wide = problem(capacity, REAL, generator)
        mixed = Problem(
            torch.cat((given.x, wide.x[5:])),
            torch.cat((given.ids, wide.ids[5:])),
            torch.cat((given.weights, wide.weights[5:])),
            given.experts,
        )
        got = mixed.call()[:5]
        tiles = (tile_for(each, "hopper") for each in (capacity, 5))
        if len({dataclasses.replace(tile, split=False) for tile in tiles}) == 1:
            assert same_bits(got, want)
        else:
            assert relative_l2(got, want) < 1e-3


@GPU_ONLY
def test_more_rows_than_the_largest_capacity(generator):
    given = problem(4101, Geometry(8, 6, 512, 64), generator)
    got = given.call()
    assert relative_l2(got, given.exact()) < 4e-3
    assert same_bits(got[4096:], given.rows(slice(4096, None)).call(rows_hint=4101))


@GPU_ONLY
def test_a_graph_replays_on_new_inputs(generator):
    given, other = (problem(6, REAL, generator) for _ in range(2))
    other = dataclasses.replace(other, experts=given.experts)
    scratch = make_scratch(6, REAL, given.x.device)
    want = [each.call() for each in (given, other)]
    held = Problem(given.x.clone(), given.ids.clone(), given.weights.clone(), given.experts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = held.call(scratch=scratch)
    for each, expected in zip((given, other, given), (*want, want[0]), strict=True):
        held.x.copy_(each.x)
        held.ids.copy_(each.ids)
        held.weights.copy_(each.weights)
        graph.replay()
        assert same_bits(out, expected)
