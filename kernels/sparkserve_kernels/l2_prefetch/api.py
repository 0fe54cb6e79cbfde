"""Bulk prefetch of memory into the GPU's L2 cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sparkserve_kernels.checks import KernelArgumentError, require_contiguous, require_same_device
from sparkserve_kernels.l2_prefetch.tiles import (
    ALIGNMENT_BYTES,
    PIECE_BYTES,
    THREADS,
    WARPS,
    blocks_for,
)
from sparkserve_kernels.target import UnsupportedDevice, supports

if TYPE_CHECKING:
    import torch

__all__ = ["Segments", "Span", "is_supported", "l2_prefetch", "segments"]

LIMIT_BYTES = 6 << 20
"""How much is worth asking for at once: what published recipes found on the Spark."""


class Span(NamedTuple):
    """A run of device memory."""

    address: int
    bytes: int


@dataclass(frozen=True)
class Segments:
    """What to prefetch, as a table on the device.

    The table holds addresses alone: whoever made it keeps what lies there mapped, and the table's
    own memory unchanged, as long as a captured graph may ask for it.
    """

    table: torch.Tensor
    """[pieces, 2] int64: address and size of each piece of at most 16 KiB, both multiples of 16."""
    bytes: int
    """All pieces together."""

    @property
    def pieces(self) -> int:
        """How many there are."""
        return int(self.table.shape[0])


def is_supported(tensor: torch.Tensor) -> bool:
    """Whether the prefetch runs on the device of a tensor; no interpreter knows it."""
    return tensor.device.type == "cuda" and supports(tensor)


def segments(
    parts: Sequence[torch.Tensor | Span],
    device: torch.device,
    *,
    limit_bytes: int = LIMIT_BYTES,
) -> Segments:
    """Lay out what to prefetch, the first ``limit_bytes`` of the parts in their order.

    parts: contiguous tensors on the device, or spans of its memory. Ends that are not aligned to
        16 bytes are left out, and so is what is shorter.
    device: where the table goes.

    Raises:
        KernelArgumentError: a tensor with gaps or on another device, or a negative size.
    """
    import torch

    if limit_bytes < 0:
        raise KernelArgumentError(f"limit_bytes = {limit_bytes}, expected 0 or more")
    rows: list[Span] = []
    left = limit_bytes
    for part in parts:
        for piece in _pieces(_span_of(part, device), left):
            rows.append(piece)
            left -= piece.bytes
    table = torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), 2)
    return Segments(table, sum(piece.bytes for piece in rows))


def l2_prefetch(wanted: Segments) -> None:
    """Ask the L2 for the segments, in the current stream, and return at once.

    Never changes a result, whether what was asked for arrives or not. Safe in a captured graph.

    Raises:
        UnsupportedDevice: the table is not on a GPU of a known family.

    Notes:
        What it is worth on a Spark is not measured.
    """
    if not is_supported(wanted.table):
        raise UnsupportedDevice(
            f"table on {wanted.table.device}, expected a CUDA GPU of compute capability 9.0 or 12.x"
        )
    if wanted.pieces == 0:
        return
    from sparkserve_kernels.l2_prefetch.kernel import prefetch_kernel

    grid = (blocks_for(wanted.pieces),)
    prefetch_kernel[grid](wanted.table, wanted.pieces, THREADS=THREADS, num_warps=WARPS)


def _span_of(part: torch.Tensor | Span, device: torch.device) -> Span:
    import torch

    if isinstance(part, Span):
        if part.bytes < 0 or part.address < 0:
            raise KernelArgumentError(
                f"span of {part.bytes} bytes at {part.address}, expected 0 or more of both"
            )
        return part
    require_contiguous("part", part)
    require_same_device(table=torch.empty(0, device=device), part=part)
    return Span(part.data_ptr(), part.nbytes)


def _pieces(span: Span, limit_bytes: int) -> list[Span]:
    start = -(-span.address // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    end = min(span.address + span.bytes, start + limit_bytes)
    end -= end % ALIGNMENT_BYTES
    return [Span(at, min(PIECE_BYTES, end - at)) for at in range(start, end, PIECE_BYTES)]
