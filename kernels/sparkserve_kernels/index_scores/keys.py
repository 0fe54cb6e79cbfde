"""Where the index-K records of the requests lie: one after another, or in pages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)

RECORD_BYTES = 68
PAYLOAD_BYTES = 64
SCALE_BYTES = 4


@dataclass(frozen=True)
class KeyRecords:
    """Keys of one request, one after another."""

    payload: torch.Tensor
    """[keys, 64] uint8; rows may lie apart."""
    scales: torch.Tensor
    """[keys, 4] uint8; rows may lie apart."""

    @classmethod
    def packed(cls, records: torch.Tensor) -> KeyRecords:
        """Views of records: [keys, 68] uint8, 64 payload bytes, then 4 scale bytes.

        Raises:
            KernelArgumentError: another shape.
        """
        require_shape("records", records, (None, RECORD_BYTES))
        return cls(records[:, :PAYLOAD_BYTES], records[:, PAYLOAD_BYTES:])

    def check(self) -> None:
        """Refuse what is no row of records.

        Raises:
            KernelArgumentError: naming shape, dtype or strides.
        """
        _require_bytes("key payload", self.payload, (None, PAYLOAD_BYTES))
        _require_bytes("key scales", self.scales, (self.payload.shape[0], SCALE_BYTES))
        require_same_device(payload=self.payload, scales=self.scales)

    @property
    def capacity(self) -> int:
        """How many keys a request can have."""
        return int(self.payload.shape[0])


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
        _require_bytes("pages", self.pages, (None, None))
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


@dataclass(frozen=True)
class KeyPlaces:
    """Both layouts as a kernel takes them."""

    payload: torch.Tensor
    """Its first byte is that of the first record, or of slot 0 of page 0."""
    scales: torch.Tensor
    table: torch.Tensor
    slots: int
    paged: bool


def places_of(keys: Keys) -> KeyPlaces:
    """Where payloads and scales start; strides lie in the tensors."""
    if isinstance(keys, KeyPages):
        scales = keys.pages[:, keys.slots * PAYLOAD_BYTES :]
        return KeyPlaces(keys.pages, scales, keys.table, keys.slots, paged=True)
    return KeyPlaces(keys.payload, keys.scales, keys.payload, 1, paged=False)


def gather_records(keys: Keys, request: int, count: int) -> torch.Tensor:
    """The first records of a request as [count, 68] uint8, in plain torch."""
    if isinstance(keys, KeyRecords):
        return torch.cat([keys.payload[:count], keys.scales[:count]], dim=1)
    number = torch.arange(count, device=keys.pages.device)
    page = keys.table[request, number // keys.slots].long()
    slot = (number % keys.slots)[:, None]
    payload_at = slot * PAYLOAD_BYTES + torch.arange(PAYLOAD_BYTES, device=slot.device)
    scales_at = keys.slots * PAYLOAD_BYTES + slot * SCALE_BYTES
    scales_at = scales_at + torch.arange(SCALE_BYTES, device=slot.device)
    at = torch.cat([payload_at, scales_at], dim=1)
    return keys.pages[page[:, None], at]


def _require_bytes(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    require_dtype(name, tensor, torch.uint8)
    require_shape(name, tensor, shape)
    require_contiguous_rows(name, tensor)
