"""Routed experts and their planner in plain torch."""

from __future__ import annotations

import torch

from sparkserve_kernels.moe_w4a8.plan import PAIR_BLOCK, pairwise, tile_slots
from sparkserve_kernels.numerics.elements import e2m1_decode, e2m1_unpack, e8m0_decode
from sparkserve_kernels.numerics.rules import GROUP, mxfp8_dequantise, mxfp8_quantise


def dequantise(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """MXFP4 weights as fp32, exactly.

    packed: [..., K/2] uint8; scales: [..., K/32] uint8, e8m0. Gives [..., K] fp32.
    """
    values = e2m1_decode(e2m1_unpack(packed)).unflatten(-1, (-1, GROUP))
    return (values * e8m0_decode(scales).unsqueeze(-1)).flatten(-2)


def swiglu(up: torch.Tensor, gate: torch.Tensor, limit: float) -> torch.Tensor:
    """min(gate, limit) * sigmoid(min(gate, limit)) * clamp(up, -limit, limit), in their dtype."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(gate) * up.clamp(min=-limit, max=limit)


def moe_w4a8(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w13: torch.Tensor,
    s13: torch.Tensor,
    w2: torch.Tensor,
    s2: torch.Tensor,
    *,
    limit: float = 10.0,
    x_scales: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The same sums in ``dtype``; see ``api.moe_w4a8``. The result is bf16 for fp32, else dtype.

    The activation between the products is quantised from fp32, as the kernels do.
    """
    if x_scales is None:
        x, x_scales = mxfp8_quantise(x)
    values = mxfp8_dequantise(x, x_scales).to(dtype)
    experts, _, inter = w13.shape[0], w13.shape[1], w2.shape[2] * 2
    slots = topk_ids.shape[1]
    routed = torch.zeros((x.shape[0], slots, w2.shape[1]), dtype=torch.bfloat16, device=x.device)
    wide = torch.zeros_like(routed, dtype=dtype)
    for expert in torch.unique(topk_ids).tolist():
        if not 0 <= expert < experts:
            continue
        token, slot = torch.nonzero(topk_ids == expert, as_tuple=True)
        both = values[token] @ dequantise(w13[expert], s13[expert]).to(dtype).T
        inner = swiglu(both[:, :inter], both[:, inter:], limit)
        quantised = mxfp8_dequantise(*mxfp8_quantise(inner.float())).to(dtype)
        outer = quantised @ dequantise(w2[expert], s2[expert]).to(dtype).T
        outer = outer * topk_weights[token, slot].to(dtype)[:, None]
        routed[token, slot] = outer.to(torch.bfloat16)
        wide[token, slot] = outer
    if dtype != torch.float32:
        return wide.sum(1)
    total = torch.zeros_like(routed[:, 0], dtype=torch.float32)
    for slot in range(slots):
        total += routed[:, slot].float()
    return total.to(torch.bfloat16)


def route_plan(
    topk_ids: torch.Tensor, experts: int, tile: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order and tile table; see ``api.route_plan``."""
    flat = topk_ids.reshape(-1).tolist()
    key = [expert if 0 <= expert < experts else experts for expert in flat]
    order = sorted(range(len(key)), key=lambda route: (key[route], route))
    size = tile_slots(len(key), experts, tile)
    table = [[0, 0, 0] for _ in range(size)]
    begin = 0
    for expert in range(experts):
        count = key.count(expert)
        for at in range(0, count, tile):
            place = begin + at if pairwise(len(key)) else begin // tile + expert + at // tile
            table[place] = [expert, begin + at, min(tile, count - at)]
        begin += count
    if len(key) <= PAIR_BLOCK:
        table.sort(key=lambda tile: (tile[2] == 0, tile[1]))
    wanted = torch.tensor(table, dtype=torch.int32).reshape(size, 3).T.contiguous()
    return torch.tensor(order, dtype=torch.int32), wanted
