"""What routed experts refuse, with both values in the message."""

import dataclasses

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.moe_w4a8.api import is_supported, make_scratch, remap_experts
from sparkserve_kernels.mxfp8_quant.api import mxfp8_quant

from tests.kernels.experts import SMALL, problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: dataclasses.replace(p, ids=p.ids.long()), "topk_ids: dtype int64"),
        (lambda p: dataclasses.replace(p, ids=p.ids[:1]), r"topk_ids: shape \[1, 2\]"),
        (lambda p: dataclasses.replace(p, weights=p.weights[:, :1]), r"topk_weights: shape"),
        (
            lambda p: dataclasses.replace(
                p, ids=p.ids[:, :1].expand(-1, 33), weights=p.weights[:, :1].expand(-1, 33)
            ),
            "33 slots a token, expected at most 32",
        ),
        (lambda p: dataclasses.replace(p, x=p.x.float()), "x: dtype float32, expected bfloat16"),
        (lambda p: dataclasses.replace(p, x=p.x[:, :96]), "hidden = 96, expected a multiple"),
        (
            lambda p: dataclasses.replace(
                p, experts=dataclasses.replace(p.experts, s13=p.experts.s13[:, :, :2])
            ),
            r"s13: shape \[4, 128, 2\], expected \[4, 128, 4\]",
        ),
        (
            lambda p: dataclasses.replace(
                p, experts=dataclasses.replace(p.experts, w2=p.experts.w2.transpose(1, 2))
            ),
            r"w13: shape \[4, 128, 64\], expected \[4, 512, 64\]",
        ),
    ],
)
def test_arguments_that_do_not_fit(change, message, generator):
    given = change(problem(2, SMALL, generator))
    with pytest.raises(KernelArgumentError, match=message):
        given.call()


def test_a_scratch_that_is_too_small(generator):
    given = problem(9, SMALL, generator)
    with pytest.raises(KernelArgumentError, match="scratch"):
        given.call(scratch=make_scratch(5, SMALL, given.x.device))


def test_a_scratch_on_another_device(generator):
    given = problem(2, SMALL, generator)
    with pytest.raises(KernelArgumentError, match=r"scratch.order on meta, expected .* as x"):
        given.call(scratch=make_scratch(5, SMALL, torch.device("meta")))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none(limit, generator):
    given = problem(2, SMALL, generator)
    with pytest.raises(KernelArgumentError, match=f"limit = {limit}, expected above 0"):
        given.call(limit=limit)


def test_a_map_of_experts_on_another_device_or_of_none(device):
    ids = torch.zeros((1, 2), dtype=torch.int32, device=device)
    weights = torch.ones((1, 2), device=device)
    local_of = torch.zeros(3, dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="local_of on meta, expected"):
        remap_experts(ids, weights, local_of.to("meta"))
    with pytest.raises(KernelArgumentError, match=r"local_of: shape \[0\], expected at least 1"):
        remap_experts(ids, weights, local_of[:0])


def test_a_hint_below_the_rows(generator):
    given = problem(9, SMALL, generator)
    with pytest.raises(KernelArgumentError, match="rows_hint = 5, expected at least 9"):
        given.call(rows_hint=5)


def test_quantised_rows_need_scales(generator):
    given = problem(2, SMALL, generator)
    q, scales = mxfp8_quant(given.x)
    ready = dataclasses.replace(given, x=q)
    with pytest.raises(KernelArgumentError, match="expected bfloat16"):
        ready.call()
    with pytest.raises(KernelArgumentError, match="x_scales: shape"):
        ready.call(x_scales=scales[:, :3])


def test_it_says_where_it_runs(device):
    assert is_supported(torch.zeros(1, device=device))
