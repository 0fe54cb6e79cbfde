"""Row ids of tokens: the reference of the Engram hash, in numpy on the CPU.

A token's window is itself and its predecessors, nearest first. Each n-gram order hashes the
first two, three, ... tokens of it::

    r = c0 * m0  XOR  c1 * m1  XOR ...          c = compressed id, m = multiplier of the distance
    id of head h = r mod prime[order][h] + first row of that column

What must not be looked at (before the start of the text, or behind an image) counts as the pad
token; and once one predecessor is blocked, all older ones are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.multipliers import hash_multipliers
from sparkserve.errors import ConfigError

Array = Any
"""A numpy array; its shape and type stand in the docstrings."""

PADDING_TOKEN = -1
"""Placeholder of padded batches: it is no token, so n-grams end there as at a text's start."""
MEDIA_TOKENS_START = 1_000_000
"""Ids from here up stand for parts of images and other media (SGLang's MM_PAD_SHIFT_VALUE)."""


@dataclass(frozen=True)
class RowHasher:
    """Everything that turns windows of tokens into row ids of every layer."""

    token_map: Array
    """Compressed id of every token id, [token ids], int64."""
    pad_id: int
    """Compressed id of the pad token."""
    multipliers: Array
    """[layers, max_ngram_size], int64."""
    primes: Array
    """[layers, orders, heads], int64."""
    first_rows: Array
    """First row of every column, [layers, columns], int64."""
    image_token_id: int | None
    """None in a model without vision."""

    @classmethod
    def of(cls, config: EngramConfig, token_map: Sequence[int]) -> RowHasher:
        """Build a model's hasher.

        token_map: compressed id of every token id (``token_map.compressed_ids``).

        Raises:
            ConfigError: the map has another number of compressed ids than the model was trained
                with, the pad or image token is none, or this numpy draws other multipliers.
        """
        import numpy

        ids = numpy.asarray(token_map, dtype=numpy.int64)
        found = int(ids.max(initial=-1)) + 1
        if found != config.compressed_vocab_size:
            raise ConfigError(
                f"the tokenizer compresses to {found} ids, expected "
                f"{config.compressed_vocab_size}: every hash depends on that number"
            )
        for name, token in (("pad", config.pad_token_id), ("image", config.image_token_id)):
            if token is not None and token >= len(ids):
                raise ConfigError(f"{name} token {token} is beyond the {len(ids)} token ids")
        primes = numpy.asarray(config.primes, dtype=numpy.int64)
        bounds = numpy.asarray(config.all_bounds, dtype=numpy.int64)
        return cls(
            token_map=ids,
            pad_id=int(ids[config.pad_token_id]),
            multipliers=numpy.asarray(hash_multipliers(config), dtype=numpy.int64),
            primes=primes.reshape(len(primes), -1, config.n_heads),
            first_rows=bounds[:, :-1],
            image_token_id=config.image_token_id,
        )

    @property
    def max_ngram(self) -> int:
        """Tokens in a window."""
        return int(self.multipliers.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, columns): what stands behind the token dimension of a result."""
        layers, columns = self.first_rows.shape
        return int(layers), int(columns)

    def hash_text(self, tokens: Array) -> Array:
        """Row ids of a whole text that begins at position 0.

        tokens: [tokens], integers; may be empty.

        Returns:
            [tokens, layers, columns], int64.

        Raises:
            ConfigError: a token id that the tokenizer does not have.
        """
        import numpy

        tokens = numpy.asarray(tokens, dtype=numpy.int64)
        lookback = self.max_ngram - 1
        before: Array = numpy.zeros(lookback, dtype=numpy.int64)
        known = numpy.concatenate([before, tokens])
        starts = range(lookback, -1, -1)
        windows = numpy.stack([known[start : start + len(tokens)] for start in starts], axis=1)
        return self.hash_windows(windows, before_start(numpy.arange(len(tokens)), self.max_ngram))

    def hash_windows(self, windows: Array, blocked: Array) -> Array:
        """Row ids of windows of token ids.

        windows: [tokens, max_ngram], integers; column s is the token at distance s.
        blocked: [tokens, max_ngram], bool; True where there is nothing to look at.

        Returns:
            [tokens, layers, columns], int64.

        Raises:
            ConfigError: a token id that the tokenizer does not have, where it is not blocked.
                ``-1`` is none of those: it blocks like a text's start.
        """
        import numpy

        windows = self.read_media(windows)
        stops = windows == PADDING_TOKEN
        if self.image_token_id is not None:
            stops |= windows == self.image_token_id
        blocked = numpy.logical_or.accumulate(blocked | stops, axis=-1)
        wrong = ~blocked & ((windows < 0) | (windows >= len(self.token_map)))
        if wrong.any():
            row, distance = numpy.argwhere(wrong)[0]
            raise ConfigError(
                f"token id {windows[row, distance]} at distance {distance} of token {row}, "
                f"expected 0 to {len(self.token_map) - 1}, or -1 for padding"
            )
        compressed = self.token_map[numpy.where(blocked, 0, windows)]
        return self.hash_compressed(numpy.where(blocked, self.pad_id, compressed))

    def hash_compressed(self, windows: Array) -> Array:
        """Row ids of windows of compressed ids, nothing of them blocked any more.

        windows: [tokens, max_ngram], int64.

        Returns:
            [tokens, layers, columns], int64; columns by order and then by head.
        """
        import numpy

        products = windows[:, None, :] * self.multipliers
        mixed = numpy.bitwise_xor.accumulate(products, axis=-1)
        ids = mixed[:, :, 1:, None] % self.primes
        return ids.reshape(len(windows), *self.shape) + self.first_rows

    def read_media(self, windows: Array) -> Array:
        """Token ids as int64, with every id of a medium read as the image token."""
        import numpy

        windows = numpy.asarray(windows, dtype=numpy.int64)
        if self.image_token_id is None:
            return windows
        return numpy.where(windows >= MEDIA_TOKENS_START, self.image_token_id, windows)


def before_start(positions: Array, max_ngram: int) -> Array:
    """Where a window reaches back beyond the start of its text.

    positions: [tokens], position of each token in its text.

    Returns:
        [tokens, max_ngram], bool.
    """
    import numpy

    return numpy.asarray(positions)[:, None] < numpy.arange(max_ngram)
