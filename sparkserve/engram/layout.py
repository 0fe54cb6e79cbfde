"""Where each hash column's rows lie in an Engram table.

A layer has one column per n-gram order (2, 3, ...) and head, order-major. Column sizes are
primes, drawn over all layers from one ascending sequence without repeats.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, islice


@functools.cache
def column_sizes(
    layers: int, max_ngram: int, heads: int, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Rows of each column of each layer.

    layers: number of Engram layers.
    max_ngram: longest n-gram; orders are 2 .. max_ngram.
    heads: columns per order.
    vocab_size: the search for primes starts at this number, anew for each order.

    Returns:
        [layers][(max_ngram - 1) * heads] primes.
    """
    seen: set[int] = set()

    def draw() -> Iterator[int]:
        for candidate in count(vocab_size):
            if candidate not in seen and _is_prime(candidate):
                seen.add(candidate)
                yield candidate

    return tuple(
        tuple(size for _ in range(max_ngram - 1) for size in islice(draw(), heads))
        for _ in range(layers)
    )


def column_bounds(sizes: Sequence[int]) -> tuple[int, ...]:
    """Prefix sums of one layer's column sizes: column c owns rows bounds[c] to bounds[c + 1]."""
    return tuple(accumulate(sizes, initial=0))


def _is_prime(number: int) -> bool:
    """Miller-Rabin with the first 12 primes as bases, exact below 3.3e24."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if number < 2:
        return False
    if any(number % base == 0 for base in bases):
        return number in bases
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True
