"""Random tensors that are the same on every machine and with every library version.

Only Python's own generator promises a stable stream; torch's and numpy's do not.
"""

from __future__ import annotations

import math
import random
from typing import Any

_UNIFORM_RMS = math.sqrt((256**2 - 1) / 12)
"""Root mean square of the 256 values -127.5, -126.5 .. 127.5."""

# e4m3 with exponent field 6 or 7: magnitudes 0.5 .. 1.875, never zero, never NaN.
_WEIGHT_BYTES = bytes((byte & 0x80) | 0x30 | (byte & 0x0F) for byte in range(256))
# e8m0: one of 2^-3, 2^-2, 2^-1.
_SCALE_BYTES = bytes(124 + byte % 3 for byte in range(256))


def noise(source: random.Random, shape: tuple[int, ...], *, rms: float) -> Any:
    """A tensor of evenly spread values around 0 with the given root mean square, bfloat16."""
    import torch

    data = bytearray(source.randbytes(math.prod(shape)))
    steps = torch.frombuffer(data, dtype=torch.uint8).to(torch.float32) - 127.5
    return (steps * (rms / _UNIFORM_RMS)).to(torch.bfloat16).reshape(shape)


def random_rows(source: random.Random, rows: int, dim: int) -> bytes:
    """Packed Engram rows: ``dim`` e4m3 bytes and ``dim / 32`` e8m0 bytes each."""
    weights = source.randbytes(rows * dim).translate(_WEIGHT_BYTES)
    scales = source.randbytes(rows * (dim // 32)).translate(_SCALE_BYTES)
    width = dim // 32
    return b"".join(
        weights[row * dim : (row + 1) * dim] + scales[row * width : (row + 1) * width]
        for row in range(rows)
    )
