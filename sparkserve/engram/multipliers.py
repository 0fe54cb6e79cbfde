"""The multipliers of the Engram hash: one odd number per layer and distance."""

from __future__ import annotations

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH, MULTIPLIERS
from sparkserve.errors import ConfigError

_INT64_MAX = (1 << 63) - 1
_SEED_STEP = 10007


def multiplier_bound(compressed_vocab_size: int) -> int:
    """What the drawn numbers stay below, so that a compressed id times its multiplier fits int64.

    Notes: the multiplier is twice the drawn number plus one, and ids stay below the vocabulary's
    size; the product is therefore never negative, nor is the XOR of several.
    """
    return max(1, _INT64_MAX // compressed_vocab_size // 2)


def hash_multipliers(config: EngramConfig) -> tuple[tuple[int, ...], ...]:
    """Draw the multipliers of every layer; the released model's must equal their golden values.

    Returns:
        [layers][max_ngram_size]; index s is the distance to the token itself.

    Raises:
        ConfigError: this numpy draws other numbers than the ones the released model was trained
            with (numpy promises no stable stream), so every row would be a wrong one.
    """
    import numpy

    bound = multiplier_bound(config.compressed_vocab_size)
    drawn = []
    for layer in config.layer_ids:
        generator = numpy.random.default_rng(_SEED_STEP * layer)
        values = generator.integers(0, bound, size=config.max_ngram_size, dtype=numpy.int64)
        drawn.append(tuple(2 * int(value) + 1 for value in values))
    released = DEEPSEEK_V41_FLASH
    if (config.max_ngram_size, config.compressed_vocab_size) == (
        released.max_ngram_size,
        released.compressed_vocab_size,
    ):
        for layer, found in zip(config.layer_ids, drawn, strict=True):
            expected = MULTIPLIERS.get(layer, found)
            if found != expected:
                raise ConfigError(
                    f"numpy {numpy.__version__} draws the Engram multipliers {list(found)} for "
                    f"layer {layer}, expected {list(expected)}: every row would be a wrong one",
                    hint="pip install numpy==2.4.6",
                )
    return tuple(drawn)
