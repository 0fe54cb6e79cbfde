"""Global to local expert ids where ranks hold different experts (EP > 1)."""

from __future__ import annotations

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_dtype,
    require_same_device,
    require_shape,
)


def remap_experts(
    topk_ids: torch.Tensor, topk_weights: torch.Tensor, local_of: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights for the experts this rank holds, without streaming one more expert.

    A foreign or negative slot gets weight 0 and the row's lowest local expert; if the row has
    none, the batch's lowest; if that has none either, expert 0.

    topk_ids: (M, slots), int32, any strides; topk_weights: (M, slots), fp32.
    local_of: (global experts,), int32: local id, or -1 for an expert of another rank.

    Gives ids (M, slots) int32 and weights (M, slots) fp32, both new. Plain torch without a look
    at the device, so it can be captured in a graph. No rows give no rows.

    Raises:
        KernelArgumentError: shape, dtype or device.
    """
    require_shape("topk_ids", topk_ids, (None, None))
    require_dtype("topk_ids", topk_ids, torch.int32)
    require_shape("topk_weights", topk_weights, tuple(topk_ids.shape))
    require_dtype("topk_weights", topk_weights, torch.float32)
    require_shape("local_of", local_of, (None,))
    require_dtype("local_of", local_of, torch.int32)
    require_same_device(topk_ids=topk_ids, topk_weights=topk_weights, local_of=local_of)
    if local_of.numel() == 0:
        raise KernelArgumentError("local_of: shape [0], expected at least 1 expert")
    if topk_ids.numel() == 0:
        return topk_ids.clone(), topk_weights.clone()
    known = (topk_ids >= 0) & (topk_ids < local_of.numel())
    local = torch.where(known, local_of[torch.where(known, topk_ids, 0).long()], -1)
    here = local >= 0
    none = torch.iinfo(torch.int32).max
    row_lowest = torch.where(here, local, none).amin(dim=1, keepdim=True)
    batch_lowest = row_lowest.amin()
    stand_in = torch.where(row_lowest < none, row_lowest, batch_lowest)
    stand_in = torch.where(stand_in < none, stand_in, 0)
    return torch.where(here, local, stand_in), torch.where(here, topk_weights, 0.0)
