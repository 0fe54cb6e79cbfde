"""Fetch the rows of every Engram layer when a forward's ids are known, and hand them out later.

Rows belong to one forward: to the ForwardBatch object that the ids were hashed for, and to the
very memory that the ids lie in. Whatever a layer asks for that is not exactly this is looked up
on the engine's own path, so a lookup that prefetching does not understand is slow, never wrong.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sparkserve.adapters.engram_prefetch.side import Side
from sparkserve.adapters.engram_prefetch.tally import Tally
from sparkserve.adapters.engram_rows.lookup import Ahead, RowLookup
from sparkserve.errors import SparkserveError

logger = logging.getLogger(__name__)


class Embedding(Protocol):
    """What engram_rows puts in place of the engine's embedding, as far as it matters here."""

    ahead: Ahead | None

    def lookup(self, device: torch.device) -> RowLookup:
        """How rows reach a device."""


@dataclass(frozen=True)
class Forward:
    """One pass of the model, from the hash to the last layer."""

    number: int
    """Counts passes; 1 is the first."""
    batch: Any
    """The engine's own object of this pass; kept, so that no other can take its identity."""
    captured: bool
    """Whether the pass goes into a CUDA graph."""


@dataclass(frozen=True)
class _Pending:
    """Rows on their way."""

    forward: Forward
    ids: torch.Tensor
    """Kept, so that no other ids can lie at the same address."""
    lookup: RowLookup
    flight: Any


class Prefetcher:
    """All Engram layers of one model; called by the thread that runs the model."""

    def __init__(
        self, embeddings: Sequence[tuple[int, Embedding]], side: Side, tallies: Sequence[Tally]
    ) -> None:
        """Take a model's embeddings, in the order in which its layers run.

        embeddings: (index in the hash's output, embedding).
        tallies: one per embedding where every row is to be checked, else none.
        """
        self._side = side
        self._numbers = itertools.count(1)
        self._off = ""
        self._layers = tuple(
            LayerAhead(self, place, index, embedding)
            for place, (index, embedding) in enumerate(embeddings)
        )
        for layer, (_, embedding) in zip(self._layers, embeddings, strict=True):
            embedding.ahead = layer
        for layer, tally in zip(self._layers, tallies, strict=bool(tallies)):
            layer.tally = tally

    @property
    def side(self) -> Side:
        """Where fetching runs."""
        return self._side

    @property
    def off(self) -> str:
        """Why nothing is fetched ahead any more; empty while it is."""
        return self._off

    def begin(self, hash_ids: torch.Tensor, forward_batch: Any) -> None:
        """Fetch the rows of a pass.

        hash_ids: [tokens, layers, columns] int64, as the hasher returned it.
        forward_batch: the engine's object that the layers will be called with.
        """
        self.end()
        if self._off or hash_ids.shape[0] == 0:
            return
        try:
            forward = Forward(next(self._numbers), forward_batch, self._side.capturing())
            with self._side.fork():
                for layer in self._layers:
                    layer.start(hash_ids, forward)
        except (RuntimeError, OSError, ValueError, SparkserveError) as error:
            self.turn_off(f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """Join what a pass has fetched and no layer took: a CUDA graph must not end before it."""
        for layer in self._layers:
            layer.drop()

    def turn_off(self, reason: str) -> None:
        """Fetch nothing ahead any more in this process; the engine's own path serves."""
        if not self._off:
            self._off = " ".join(reason.split())
            logger.warning(
                "sparkserve: engram_prefetch is off from now on, rows are looked up when they "
                "are needed: %s",
                self._off,
            )
        self.end()


class LayerAhead:
    """One layer's rows ahead of time."""

    def __init__(
        self, prefetcher: Prefetcher, place: int, index: int, embedding: Embedding
    ) -> None:
        self._prefetcher = prefetcher
        self._place = place
        self._index = index
        self._embedding = embedding
        self._pending: _Pending | None = None
        self.tally: Tally | None = None
        self._served = 0
        self._dropped = 0

    def start(self, hash_ids: torch.Tensor, forward: Forward) -> None:
        """Ask for this layer's rows; within a fork."""
        ids = hash_ids[:, self._index]
        lookup = self._embedding.lookup(ids.device)
        flight = lookup.start(ids)
        self._pending = _Pending(forward, ids, lookup, flight)
        self._prefetcher.side.mark(self._place)

    def take(self, ids: torch.Tensor, forward_batch: Any) -> torch.Tensor | None:
        """The rows, or None where these are not the ids that were fetched for."""
        pending = self._pending
        if pending is None:
            return None
        side = self._prefetcher.side
        fits = (
            pending.forward.batch is forward_batch
            and pending.forward.captured == side.capturing()
            and _same_memory(pending.ids, ids)
        )
        if not fits:
            self.drop()
            return None
        self._pending = None
        side.join(self._place)
        try:
            rows = pending.lookup.finish(pending.flight)
        except SparkserveError as error:
            self._prefetcher.turn_off(f"layer {self._place}: {error}")
            return None
        self._served += 1
        if self.tally is not None:
            self.tally.add(rows, pending.lookup.now(ids))
        return rows

    def drop(self) -> None:
        """Give up rows that nobody took."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._dropped += 1
        side = self._prefetcher.side
        # An event of a capture means nothing outside it, and the other way round.
        if pending.forward.captured == side.capturing():
            side.join(self._place)
        pending.lookup.discard(pending.flight)

    def counters(self) -> dict[str, Any]:
        """Figures for the statistics file.

        Notes: replays of a CUDA graph run no Python, so ``prefetched`` counts a captured lookup
        once; the checked and differing rows are counted on the device, replays included.
        """
        figures: dict[str, Any] = {
            "prefetch": f"off: {self._prefetcher.off}" if self._prefetcher.off else "on",
            "prefetched": self._served,
            "prefetch_dropped": self._dropped,
        }
        return figures | (self.tally.counters() if self.tally else {})


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors that are both alive are views of the same ids."""
    return bool(
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device == other.device
    )
