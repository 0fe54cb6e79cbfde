"""Where the index-K records of the requests lie: one after another, or in pages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous_rows,
    require_dtype,
    require_shape,
)

RECORD_BYTES = 68
PAYLOAD_BYTES = 64
SCALE_BYTES = 4


@dataclass(frozen=True)
class KeyRecords:
    """Keys of one request, one record after another."""

    records: torch.Tensor
    """[keys, 68] uint8: 64 payload bytes, then 4 scale bytes; rows may lie apart."""

    def check(self) -> None:
        """Refuse what is no row of records.

        Raises:
            KernelArgumentError: naming shape, dtype or strides.
        """
        require_dtype("records", self.records, torch.uint8)
        require_shape("records", self.records, (None, RECORD_BYTES))
        require_contiguous_rows("records", self.records)

    @property
    def capacity(self) -> int:
        """How many keys a request can have."""
        return int(self.records.shape[0])


@dataclass(frozen=True)
class KeyPages:
    """Keys of several requests in pages: all payloads of a page, then all its scales."""

    pages: torch.Tensor
    """[pages, >= slots * 68] uint8; pages may lie apart."""
    table: torch.Tensor
    """[requests, pages per request] int32: page of each request's i-th run of slots."""
    slots: int = 64
    """Records per page."""

    def check(self) -> None:
        """Refuse pages that are too narrow or of another dtype.

        Raises:
            KernelArgumentError: naming shape, dtype, strides or slots.
        """
        require_dtype("pages", self.pages, torch.uint8)
        require_shape("pages", self.pages, (None, None))
        require_contiguous_rows("pages", self.pages)
        require_dtype("table", self.table, torch.int32)
        require_shape("table", self.table, (None, None))
        require_contiguous_rows("table", self.table)
        if self.slots < 1 or self.slots & (self.slots - 1):
            raise KernelArgumentError(f"slots = {self.slots}, expected a power of two")
        if self.pages.shape[1] < self.slots * RECORD_BYTES:
            raise KernelArgumentError(
                f"pages: {self.pages.shape[1]} bytes per page, expected at least "
                f"{self.slots * RECORD_BYTES} for {self.slots} slots"
            )

    @property
    def capacity(self) -> int:
        """How many keys a request can have."""
        return int(self.table.shape[1]) * self.slots


Keys = KeyRecords | KeyPages


def tensor_of(keys: Keys) -> torch.Tensor:
    """The bytes of the records."""
    return keys.records if isinstance(keys, KeyRecords) else keys.pages


def gather_records(keys: Keys, request: int, count: int) -> torch.Tensor:
    """The first records of a request as [count, 68] uint8, in plain torch."""
    if isinstance(keys, KeyRecords):
        return keys.records[:count]
    number = torch.arange(count, device=keys.pages.device)
    page = keys.table[request, number // keys.slots].long()
    slot = (number % keys.slots)[:, None]
    payload_at = slot * PAYLOAD_BYTES + torch.arange(PAYLOAD_BYTES, device=slot.device)
    scales_at = keys.slots * PAYLOAD_BYTES + slot * SCALE_BYTES
    scales_at = scales_at + torch.arange(SCALE_BYTES, device=slot.device)
    at = torch.cat([payload_at, scales_at], dim=1)
    return keys.pages[page[:, None], at]
