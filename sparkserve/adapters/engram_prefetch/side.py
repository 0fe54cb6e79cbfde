"""Where fetching runs beside the engine: a second CUDA stream, or the stores' own threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Side(Protocol):
    """Orders what runs aside with what the engine runs; used by one thread."""

    def capturing(self) -> bool:
        """Whether what is queued now goes into a CUDA graph."""

    def fork(self) -> AbstractContextManager[None]:
        """Within it, work runs aside, after everything the engine has queued so far."""

    def mark(self, index: int) -> None:
        """The work of one layer ends here; within a fork."""

    def join(self, index: int) -> None:
        """Let the engine's stream go on only after that layer's work."""


class CpuSide:
    """Threads of the stores do the work; whoever finishes a lookup waits for it himself."""

    def capturing(self) -> bool:
        """Never: the CPU has no graphs."""
        return False

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Nothing to order."""
        yield

    def mark(self, index: int) -> None:
        """Nothing to order."""

    def join(self, index: int) -> None:
        """Nothing to order."""


class CudaSide:
    """One more stream, and one event per layer, so that the first can be joined early."""

    def __init__(self, device: torch.device, layers: int) -> None:
        # All of them exist before any capture: a capture may only use what is there.
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._edge = torch.cuda.Event()
        self._done = [torch.cuda.Event() for _ in range(layers)]

    def capturing(self) -> bool:
        """Whether the current stream is being captured."""
        return bool(torch.cuda.is_current_stream_capturing())

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Make the side stream the current one; an error inside joins it again."""
        main = torch.cuda.current_stream(self._device)
        self._edge.record(main)
        self._stream.wait_event(self._edge)
        try:
            with torch.cuda.stream(self._stream):
                yield
        except BaseException:
            # A capture that ends with a branch outside is an error of its own.
            self._edge.record(self._stream)
            main.wait_event(self._edge)
            raise

    def mark(self, index: int) -> None:
        """Record a layer's event."""
        self._done[index].record(self._stream)

    def join(self, index: int) -> None:
        """Wait for a layer's event in the current stream."""
        torch.cuda.current_stream(self._device).wait_event(self._done[index])
