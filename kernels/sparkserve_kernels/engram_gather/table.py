"""Where an Engram table lies: tensors or raw addresses, two arrays or packed records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_same_device,
    require_shape,
)

if TYPE_CHECKING:
    import torch

VALUES = 256
"""Values per row, one byte each."""
GROUPS = 8
"""Scales per row, one for 32 values."""
RECORD_BYTES = VALUES + GROUPS
ALIGNMENT_BYTES = 8
"""Of the values' address: packed records leave no more."""

Zero = Literal["signed", "positive"]
"""``positive`` turns -0 into +0, as a sum over ranks with zero-filled foreign rows does."""
Visit = Literal["given", "sorted"]
"""``sorted`` reads the rows in order of their ids, which brings reads of one memory page together.
A few ids are read as given all the same: no order of theirs is worth a sort."""


@dataclass(frozen=True)
class RowTable:
    """Rows of 256 e4m3 values with 8 e8m0 scales, in memory that the GPU can address.

    A table holds no reference to what lies at its addresses; whoever made it keeps that alive.
    """

    values_address: int
    """Of the first row's values."""
    scales_address: int
    value_stride_bytes: int
    """From one row's values to the next row's."""
    scale_stride_bytes: int
    rows: int
    tensors: tuple[torch.Tensor, ...] = ()
    """What it was made from; empty for raw addresses, which the reference cannot read."""

    @classmethod
    def of_planes(cls, values: torch.Tensor, scales: torch.Tensor) -> RowTable:
        """A table of two tensors.

        values: [rows, 256] float8_e4m3fn or uint8, contiguous.
        scales: [rows, 8] float8_e8m0fnu or uint8, contiguous.

        Raises:
            KernelArgumentError: another shape, dtype or device, or a gap.
        """
        import torch

        require_shape("values", values, (None, VALUES))
        require_shape("scales", scales, (values.shape[0], GROUPS))
        require_dtype("values", values, torch.float8_e4m3fn, torch.uint8)
        require_dtype("scales", scales, torch.float8_e8m0fnu, torch.uint8)
        require_contiguous("values", values)
        require_contiguous("scales", scales)
        require_same_device(values=values, scales=scales)
        at = (values.data_ptr(), scales.data_ptr())
        return cls(*at, VALUES, GROUPS, values.shape[0], (values, scales))._checked()

    @classmethod
    def of_records(cls, records: torch.Tensor) -> RowTable:
        """A table in the layout of packed shards: a row's scales right behind its values.

        records: [rows, 264] uint8, contiguous.

        Raises:
            KernelArgumentError: another shape or dtype, or a gap.
        """
        import torch

        require_shape("records", records, (None, RECORD_BYTES))
        require_dtype("records", records, torch.uint8)
        require_contiguous("records", records)
        start = records.data_ptr()
        strides = (RECORD_BYTES, RECORD_BYTES)
        return cls(start, start + VALUES, *strides, records.shape[0], (records,))._checked()

    @classmethod
    def planes_at(cls, values_address: int, scales_address: int, rows: int) -> RowTable:
        """A table of two arrays at addresses that the GPU can read (device or pinned host memory).

        Raises:
            KernelArgumentError: the values are not aligned to 8 bytes, or rows at no address.
        """
        _require_address(min(values_address, scales_address), rows)
        return cls(values_address, scales_address, VALUES, GROUPS, rows)._checked()

    @classmethod
    def records_at(cls, address: int, rows: int) -> RowTable:
        """A table of packed records at an address that the GPU can read.

        Raises:
            KernelArgumentError: the records are not aligned to 8 bytes, or rows at no address.
        """
        strides = (RECORD_BYTES, RECORD_BYTES)
        _require_address(address, rows)
        return cls(address, address + VALUES, *strides, rows)._checked()

    @property
    def packed(self) -> bool:
        """Whether it consists of records."""
        return self.value_stride_bytes == RECORD_BYTES

    def _checked(self) -> RowTable:
        require_multiple("address of the values", self.values_address, ALIGNMENT_BYTES)
        if self.rows < 0:
            raise KernelArgumentError(f"rows = {self.rows}, expected 0 or more")
        return self


def _require_address(address: int, rows: int) -> None:
    if rows > 0 and address <= 0:
        raise KernelArgumentError(f"{rows} rows at address {address}, expected a positive one")


@dataclass(frozen=True)
class GatherOptions:
    """What may differ between callers."""

    zero: Zero = "signed"
    visit: Visit = "given"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("zero", self.zero, get_args(Zero)),
            ("visit", self.visit, get_args(Visit)),
        ):
            if value not in known:
                raise KernelArgumentError(f"{name} = {value!r}, expected {' or '.join(known)}")
