"""Routed experts to test with: random problems, and the kernels of one family at one bucket."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from sparkserve_kernels.moe_w4a8 import launch, plan, reference
from sparkserve_kernels.moe_w4a8.api import Geometry, moe_w4a8
from sparkserve_kernels.moe_w4a8.tiles import tile_for

GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs, real sizes or inline assembly"
)
FAMILIES = ("spark", "hopper")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Inputs of one call."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    experts: launch.Experts

    @property
    def geometry(self):
        w13, w2 = self.experts.w13, self.experts.w2
        return Geometry(w13.shape[0], self.ids.shape[1], self.x.shape[1], w2.shape[2] * 2)

    def call(self, **options):
        e = self.experts
        return moe_w4a8(self.x, self.ids, self.weights, e.w13, e.s13, e.w2, e.s2, **options)

    def exact(self, dtype=torch.float64, **options):
        e = self.experts
        tensors = (self.x, self.ids, self.weights, e.w13, e.s13, e.w2, e.s2)
        return reference.moe_w4a8(*tensors, dtype=dtype, **options)

    def rows(self, index):
        return dataclasses.replace(
            self, x=self.x[index], ids=self.ids[index], weights=self.weights[index]
        )


def problem(rows, geometry, generator, lowest=-1):
    """Random weights of every code, scales over six binades, ids that may lie outside."""
    device = generator.device
    experts, slots, hidden, inter = dataclasses.astuple(geometry)

    def draw(low, high, shape, dtype=torch.uint8):
        return torch.randint(low, high, shape, generator=generator, device=device, dtype=dtype)

    x = torch.randn((rows, hidden), generator=generator, device=device).bfloat16()
    return Problem(
        x=x,
        ids=draw(lowest, experts, (rows, slots), torch.int32),
        weights=torch.rand((rows, slots), generator=generator, device=device) * 1.5,
        experts=launch.Experts(
            draw(0, 256, (experts, 2 * inter, hidden // 2)),
            draw(114, 120, (experts, 2 * inter, hidden // 32)),
            draw(0, 256, (experts, hidden, inter // 2)),
            draw(114, 120, (experts, hidden, inter // 32)),
        ),
    )


def run(given, family, capacity=None, x_scales=None, limit=10.0, scratch=None):
    """The kernels of one family at one bucket, whatever the device's own is."""
    count = given.x.shape[0]
    capacity = plan.capacity_for(count) if capacity is None else capacity
    if scratch is None:
        scratch = launch.allocate(count, given.geometry, given.x.device)
    out = torch.empty_like(given.x, dtype=torch.bfloat16)
    how = launch.Launch(
        given.geometry, tile_for(capacity, family), limit, given.x.device.type == "cpu"
    )
    launch.run(
        launch.Rows(given.x, x_scales, given.ids, given.weights), given.experts, out, scratch, how
    )
    return out


SMALL = Geometry(experts=4, slots=2, hidden=128, inter=64)
