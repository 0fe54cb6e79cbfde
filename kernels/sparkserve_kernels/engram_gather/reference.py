"""The same gather in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.engram_gather.api import DEFAULT, check_owned
from sparkserve_kernels.engram_gather.table import VALUES, GatherOptions, RowTable

if TYPE_CHECKING:
    import torch


def engram_gather(
    ids: torch.Tensor,
    table: RowTable,
    owned: tuple[int, int] | None = None,
    *,
    out: torch.Tensor | None = None,
    options: GatherOptions = DEFAULT,
) -> torch.Tensor:
    """As ``api.engram_gather``, for tables made of tensors.

    Raises:
        KernelArgumentError: a table of raw addresses.
    """
    import torch

    first, end = check_owned(table, owned)
    flat = ids.reshape(-1)
    mine = (flat >= first) & (flat < end)
    decoded = torch.zeros((flat.numel(), VALUES), dtype=torch.bfloat16, device=ids.device)
    if table.rows:
        values, scales = _planes(table)
        rows = torch.where(mine, flat - first, 0)
        decoded = torch.where(mine[:, None], decode_rows(values[rows], scales[rows]), decoded)
    if options.zero == "positive":
        decoded = torch.where(decoded == 0, 0.0, decoded)
    decoded = decoded.view(*ids.shape, VALUES)
    return decoded if out is None else out.copy_(decoded)


def decode_rows(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Rows as bf16 from their bytes.

    values: [rows, 256] uint8; scales: [rows, 8] uint8.
    """
    import torch

    exact = values.view(torch.float8_e4m3fn).float()
    factors = scales.view(torch.float8_e8m0fnu).float()
    return (exact.view(-1, scales.shape[1], 32) * factors[:, :, None]).flatten(1).bfloat16()


def _planes(table: RowTable) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    if not table.tensors:
        raise KernelArgumentError("table of raw addresses, expected one of tensors")
    if table.packed:
        (records,) = table.tensors
        return records[:, :VALUES], records[:, VALUES:]
    values, scales = table.tensors
    return values.view(torch.uint8), scales.view(torch.uint8)
