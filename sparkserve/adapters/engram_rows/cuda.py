"""The lookup on CUDA: copies and a host function in one stream, so that a graph can hold it.

::

    stream   ids to host | host function: store reads rows | rows to device | gather

Buffers lie at fixed addresses per power of two of ids, and each number of ids has one job
structure: both are baked into captured graphs, so neither may be made during a capture.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch
from sparkserve_native import LookupJob, host_callback

from sparkserve.adapters.engram_rows import META, Settings
from sparkserve.adapters.engram_rows.lookup import chosen_columns
from sparkserve.adapters.engram_rows.shards import OpenLayer
from sparkserve.engram.shard import WEIGHTS_PER_SCALE
from sparkserve.errors import EngineRefused


@dataclass(frozen=True)
class _Staging:
    """Buffers for up to ``ids.numel()`` rows."""

    ids: torch.Tensor
    """Pinned int64 [capacity]."""
    weights: torch.Tensor
    """Pinned uint8 [capacity, dim]."""
    scales: torch.Tensor
    """Pinned uint8 [capacity, dim / 32]."""
    device_weights: torch.Tensor
    """On the device, or the pinned one where the gather reads that."""
    device_scales: torch.Tensor


@dataclass(frozen=True)
class _Lane:
    """What one number of ids needs."""

    staging: _Staging
    job: LookupJob
    count: int


@dataclass(frozen=True)
class CudaFlight:
    """A started lookup."""

    lane: _Lane | None
    """None where there is nothing to look up."""
    order: torch.Tensor
    """Staged row of each place, -1 for a zero row; [places] int32."""
    shape: torch.Size


class CudaLookup:
    """Rows of one layer on one CUDA device."""

    def __init__(
        self, layer: OpenLayer, dim: int, settings: Settings, device: torch.device
    ) -> None:
        self._layer = layer
        self._dim = dim
        self._copies = settings.gather_from == "device"
        self._device = device
        self._stagings: dict[int, _Staging] = {}
        self._lanes: dict[int, _Lane] = {}
        self._orders: dict[tuple[int, bool], torch.Tensor] = {}

    def start(self, ids: torch.Tensor) -> CudaFlight:
        """Queue the reading of the rows of ``ids`` in the current stream.

        Raises:
            EngineRefused: a graph is being captured, and this number of ids was not seen before.
        """
        columns = chosen_columns(self._layer, ids)
        mine = ids if columns is None else ids[..., columns]
        order = self._order(ids, columns)
        count = mine.numel()
        if count == 0:
            return CudaFlight(None, order, ids.shape)
        lane = self._lanes.get(count) or self._new_lane(count)
        staging = lane.staging
        staging.ids[:count].view(mine.shape).copy_(mine, non_blocking=True)
        _launch_host_function(lane.job.address, self._device)
        if self._copies:
            for device, host in (
                (staging.device_weights, staging.weights),
                (staging.device_scales, staging.scales),
            ):
                device[:count].copy_(host[:count], non_blocking=True)
        return CudaFlight(lane, order, ids.shape)

    def finish(self, flight: CudaFlight) -> torch.Tensor:
        """Queue the dequantisation in the current stream, which must come after the start's."""
        from sglang.kernels.ops.embeddings.engram_gather import engram_gather

        shape = (*flight.shape, self._dim)
        if flight.lane is None:
            return torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
        out = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        staging = flight.lane.staging
        engram_gather(
            staging.device_weights.data_ptr(),
            staging.device_scales.data_ptr(),
            flight.order,
            out.view(-1, self._dim),
            self._dim,
            WEIGHTS_PER_SCALE,
        )
        return out

    def discard(self, flight: CudaFlight) -> None:
        """Nothing to do: whoever joins the streams orders the buffers' next use."""

    def now(self, ids: torch.Tensor) -> torch.Tensor:
        """Both halves in the current stream."""
        return self.finish(self.start(ids))

    def _new_lane(self, count: int) -> _Lane:
        self._refuse_in_capture(f"a lookup of {count} ids")
        capacity = _power_of_two(count)
        staging = self._stagings.get(capacity) or self._new_staging(capacity)
        job = self._layer.store.job(
            staging.ids.data_ptr(), count, staging.weights.data_ptr(), staging.scales.data_ptr()
        )
        lane = self._lanes[count] = _Lane(staging, job, count)
        return lane

    def _new_staging(self, capacity: int) -> _Staging:
        def pinned(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, pin_memory=True)

        weights = pinned(capacity, self._dim)
        scales = pinned(capacity, self._dim // WEIGHTS_PER_SCALE)
        staging = self._stagings[capacity] = _Staging(
            ids=pinned(capacity, dtype=torch.int64),
            weights=weights,
            scales=scales,
            device_weights=weights.to(self._device) if self._copies else weights,
            device_scales=scales.to(self._device) if self._copies else scales,
        )
        return staging

    def _order(self, ids: torch.Tensor, columns: slice | None) -> torch.Tensor:
        """Which staged row goes to each place of ``ids``, [places] int32."""
        width = 1 if columns is None else ids.shape[-1]
        groups = _power_of_two(max(1, ids.numel() // width))
        key = (groups, columns is None)
        order = self._orders.get(key)
        if order is None:
            self._refuse_in_capture(f"a lookup of {ids.numel()} ids")
            # Built on the host: an arange kernel in a side stream would need its own joins.
            order = _order_of(groups, width, columns).to(self._device)
            self._orders[key] = order
        return order[: ids.numel()]

    def _refuse_in_capture(self, what: str) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise EngineRefused(
                META.name,
                f"{what} in layer {self._layer.identity.layer} was not warmed before the capture "
                "of a CUDA graph; its buffers cannot be made during it",
            )


def _order_of(groups: int, width: int, columns: slice | None) -> torch.Tensor:
    """[groups * width] int32: running number of the owned places, -1 for the others."""
    order = torch.full((groups, width), -1, dtype=torch.int32)
    place = order if columns is None else order[:, columns]
    place.copy_(torch.arange(place.numel(), dtype=torch.int32).view(place.shape))
    return order.view(-1)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count`` >= 1."""
    return 1 << (count - 1).bit_length()


@functools.cache
def _driver() -> ctypes.CDLL:
    # The driver's own entry point: its name is the same under every CUDA runtime.
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchHostFunc.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    library.cuLaunchHostFunc.restype = ctypes.c_int
    return library


@functools.cache
def _callback() -> int:
    return int(host_callback())


def _launch_host_function(job_address: int, device: torch.device) -> None:
    stream = torch.cuda.current_stream(device).cuda_stream
    result = _driver().cuLaunchHostFunc(stream, _callback(), job_address)
    if result:
        raise EngineRefused(META.name, f"cuLaunchHostFunc answered {result}, expected 0")
