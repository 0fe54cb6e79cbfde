"""What came before each request's next token: the reference of the engine's per-request history.

A batch holds only the tokens that are computed now, while a hash looks at their predecessors as
well. Each request slot therefore keeps its newest tokens, oldest first; one more row, the sink,
takes what belongs to no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkserve.engram.hashing import MEDIA_TOKENS_START, Array, RowHasher, before_start
from sparkserve.errors import ConfigError


@dataclass(frozen=True)
class Batch:
    """Tokens that are computed together; arrays are numpy's."""

    tokens: Array
    """[tokens], integers; those of one request stand together, padding of a graph at the end."""
    positions: Array
    """[tokens], position of each token in its request."""
    slots: Array
    """[requests], slot of each request."""
    cache_places: Array | None = None
    """[tokens], where the token's keys are stored; place 0 marks padding, which leaves no trace."""


class RequestHistory:
    """The newest tokens of every request slot."""

    def __init__(self, hasher: RowHasher, slots: int) -> None:
        import numpy

        self._hasher = hasher
        self._lookback = hasher.max_ngram - 1
        self.sink = slots
        self.rows: Array = numpy.zeros((slots + 1, self._lookback), dtype=numpy.int32)
        """[slots + 1, max_ngram - 1], int32, oldest first; the last row is the sink."""

    def decode(self, batch: Batch) -> Array:
        """Row ids of one token per request; the history moves on by that token.

        Returns:
            [tokens, layers, columns], int64.
        """
        import numpy

        before: Array = self.rows[batch.slots].astype(numpy.int64)
        tokens = numpy.asarray(batch.tokens, dtype=numpy.int64)[:, None]
        windows = numpy.concatenate([tokens, before[:, ::-1]], axis=1)
        ids = self._hash(windows, batch.positions)
        self._commit(windows, numpy.asarray(batch.slots), batch.cache_places)
        return ids

    def extend(self, batch: Batch, lengths: Array, predecessors: Array | None = None) -> Array:
        """Row ids of a run of tokens per request; the history becomes the end of each run.

        lengths: [requests], tokens of each run in the order of the slots; 0 leaves the request's
            history alone. Tokens beyond their sum are padding: fully blocked.
        predecessors: [requests, max_ngram - 1], oldest first, used in place of the history;
            None where the engine's scheduler supplied none.

        Returns:
            [tokens, layers, columns], int64.
        """
        import numpy

        lengths = numpy.asarray(lengths, dtype=numpy.int64)
        before = self.rows[batch.slots] if predecessors is None else predecessors
        windows, real = self._windows(batch.tokens, lengths, before)
        ids = self._hash(windows, batch.positions, real)
        ends = numpy.cumsum(lengths) - 1
        # An empty run has no end of its own; it reads any token and writes it into the sink.
        ends = numpy.where(lengths > 0, ends, 0)
        if len(windows):
            slots = numpy.where(lengths > 0, batch.slots, self.sink)
            places = None if batch.cache_places is None else batch.cache_places[ends]
            self._commit(windows[ends], slots, places)
        return ids

    def verify(self, batch: Batch) -> Array:
        """Row ids of a block of proposed tokens per request; the history stays as it is.

        Returns:
            [tokens, layers, columns], int64.

        Raises:
            ConfigError: the tokens do not make one equal block per request.
        """
        import numpy

        requests, tokens = len(batch.slots), len(batch.tokens)
        if requests == 0 or tokens % requests:
            raise ConfigError(
                f"{tokens} tokens to verify for {requests} requests, expected one equal block each"
            )
        lengths = numpy.full(requests, tokens // requests)
        windows, real = self._windows(batch.tokens, lengths, self.rows[batch.slots])
        return self._hash(windows, batch.positions, real)

    def commit_after_verify(self, proposed: Array, slots: Array, accepted: Array) -> None:
        """Move the histories on by what was accepted of a verified block.

        proposed: [requests, block], the tokens that were verified, the anchor first.
        slots: [requests].
        accepted: [requests], how many of the block count: anchor and accepted drafts. The bonus
            token is not among them, it is the next block's anchor.
        """
        import numpy

        slots = numpy.asarray(slots)
        accepted = numpy.asarray(accepted, dtype=numpy.int64)
        known = numpy.concatenate([self.rows[slots], clamp_media(proposed)], axis=1)
        newest = accepted[:, None] + numpy.arange(self._lookback)
        self.rows[slots] = numpy.take_along_axis(known, newest, axis=1)

    def idle(self, tokens: int) -> Array:
        """Row ids of a batch without requests, which nobody reads: zeros."""
        import numpy

        return numpy.zeros((tokens, *self._hasher.shape), dtype=numpy.int64)

    def _windows(self, tokens: Array, lengths: Array, before: Array) -> tuple[Array, int]:
        """Window of every token, zeros for padding; and how many are no padding."""
        import numpy

        tokens = numpy.asarray(tokens, dtype=numpy.int64)
        windows: Array = numpy.zeros((len(tokens), self._lookback + 1), dtype=numpy.int64)
        start = 0
        for length, history in zip(lengths.tolist(), before, strict=True):
            end = start + length
            known = numpy.concatenate([history, tokens[start:end]])
            for distance in range(self._lookback + 1):
                first = self._lookback - distance
                windows[start:end, distance] = known[first : first + length]
            start = end
        return windows, start

    def _hash(self, windows: Array, positions: Array, real: int | None = None) -> Array:
        blocked = before_start(positions, self._lookback + 1)
        if real is not None:
            blocked[real:] = True
        return self._hasher.hash_windows(windows, blocked)

    def _commit(self, windows: Array, slots: Array, places: Array | None) -> None:
        import numpy

        if places is not None:
            slots = numpy.where(numpy.asarray(places) == 0, self.sink, slots)
        newest = self._hasher.read_media(windows)[:, : self._lookback]
        self.rows[slots] = clamp_media(newest[:, ::-1])


def clamp_media(tokens: Any) -> Array:
    """Token ids as the int32 history keeps them: every id of a medium becomes the first one."""
    import numpy

    return numpy.minimum(tokens, MEDIA_TOKENS_START).astype(numpy.int32)


def predecessors_of(text: Array, start: int, lookback: int) -> Array:
    """The tokens right before a position, oldest first, with zeros before the text's start.

    Returns:
        [lookback], int32: what a scheduler supplies for a run that begins at ``start``.
    """
    import numpy

    known = numpy.asarray(text[max(0, start - lookback) : start])
    return clamp_media(numpy.concatenate([numpy.zeros(lookback - len(known), int), known]))
