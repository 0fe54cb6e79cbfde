"""Launches of the selection kernels on checked tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from sparkserve_kernels.index_topk.kernel import select_kernel, slots_kernel
from sparkserve_kernels.index_topk.tiles import SLOTS_WARPS, SelectTile, segment_count


@dataclass(frozen=True)
class Source:
    """Scores of a run of positions."""

    scores: torch.Tensor
    """[rows, length * group] fp32."""
    visible: torch.Tensor
    """[rows] int32: keys that the row sees."""
    first: int = 0
    """Position of the first element, in groups."""
    group: int = 1
    listed: torch.Tensor | None = None
    """[rows, length / per_entry] int32, ascending: the elements' positions, or their blocks."""
    per_entry: int = 1

    @property
    def length(self) -> int:
        """Elements per row; a group that is cut off counts."""
        return -(-int(self.scores.shape[1]) // self.group)


class Selection:
    """The best of each row so far; positions only grow from one ``add`` to the next."""

    def __init__(self, rows: int, tile: SelectTile, device: torch.device) -> None:
        self._tile = tile
        self._values = torch.empty((rows, 1, tile.k), dtype=torch.float32, device=device)
        self._positions = torch.empty((rows, 1, tile.k), dtype=torch.int32, device=device)
        self._scratch: _Scratch | None = None
        self._carries = False

    def add(self, source: Source) -> None:
        """Select among what is held and the elements of a source."""
        rows, length = self._values.shape[0], source.length
        segments = segment_count(rows, length)
        if self._scratch is None or self._scratch.segments != segments:
            self._scratch = _Scratch(rows, segments, self._tile, source.scores.device)
        scratch = self._scratch
        if segments > 1:
            step = -(-length // segments)
            run = _Run(scratch, scratch.values, scratch.positions, step, carry=False)
            run.launch(source)
            source = Source(
                scratch.values.view(rows, -1),
                source.visible,
                listed=scratch.positions.view(rows, -1),
            )
        run = _Run(scratch, self._values, self._positions, source.length, carry=self._carries)
        run.launch(source)
        self._carries = True

    def positions(self) -> torch.Tensor:
        """[rows, k] int32, ascending, padded with -1."""
        if not self._carries:
            self._positions.fill_(-1)
        return self._positions.squeeze(1)


class _Scratch:
    """Buffers of survivors per row and segment, and what the segments select."""

    def __init__(self, rows: int, segments: int, tile: SelectTile, device: torch.device) -> None:
        self.segments = segments
        self.tile = tile
        shape = (rows, segments, tile.capacity)
        self.work_values = torch.empty(shape, dtype=torch.float32, device=device)
        self.work_positions = torch.empty(shape, dtype=torch.int32, device=device)
        shape = (rows, segments if segments > 1 else 0, tile.k)
        self.values = torch.empty(shape, dtype=torch.float32, device=device)
        self.positions = torch.empty(shape, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class _Run:
    """One launch: what it writes and how it walks."""

    scratch: _Scratch
    values: torch.Tensor
    positions: torch.Tensor
    segment: int
    carry: bool

    def launch(self, source: Source) -> None:
        """Select from a source into values and positions."""
        tile = self.scratch.tile
        listed = source.visible if source.listed is None else source.listed
        rows, segments, _ = self.values.shape
        select_kernel[(rows, segments)](
            source.scores,
            listed,
            source.visible,
            self.scratch.work_values,
            self.scratch.work_positions,
            self.values,
            self.positions,
            source.scores.stride(0),
            listed.stride(0),
            source.first,
            source.scores.shape[1],
            self.segment,
            K=tile.k,
            CAPACITY=tile.capacity,
            CHUNK=tile.chunk,
            STEP=tile.step,
            GROUP=source.group,
            LISTED=0 if source.listed is None else source.per_entry,
            CARRY=self.carry,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )


@dataclass(frozen=True)
class SlotMap:
    """Where the positions of the requests lie."""

    request_to_token: torch.Tensor
    """[pool rows, tokens] int32."""
    requests: torch.Tensor
    """[requests] int32: pool row of each request."""
    ratio: int


def launch_slots(
    positions: torch.Tensor, slots: torch.Tensor, slot_map: SlotMap, row_starts: torch.Tensor | None
) -> None:
    """Write the slots of all positions."""
    rows, k = positions.shape
    requests = slot_map.requests.shape[0]
    slots_kernel[(rows,)](
        positions,
        slot_map.requests if row_starts is None else row_starts,
        slot_map.requests,
        slot_map.request_to_token,
        slots,
        positions.stride(0),
        slot_map.request_to_token.stride(0),
        0,
        requests,
        slot_map.ratio,
        REQUESTS=triton.next_power_of_2(max(requests, 1)),
        RAGGED=row_starts is not None,
        K=k,
        BLOCK=triton.next_power_of_2(k),
        num_warps=SLOTS_WARPS,
    )
