"""When a verify step stops trusting drafts, and checks of the arguments."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

from sparkserve_kernels.checks import (
    KernelArgumentError,
    require_contiguous,
    require_contiguous_rows,
    require_dtype,
    require_same_device,
    require_shape,
)

SLOTS = 64
"""Length of the buffer: the requests of the largest batch."""
DRAFTS = 5


@dataclass(frozen=True)
class LiveRule:
    """Keep the leading drafts whose running product of confidences reaches their threshold."""

    thresholds: tuple[float, ...]
    """One per draft. They are compared as fp32."""
    at_least: int = 1
    """Drafts that are kept whatever their confidence."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.thresholds) <= DRAFTS:
            raise KernelArgumentError(f"{len(self.thresholds)} thresholds, expected 1 to {DRAFTS}")
        if not 0 <= self.at_least <= len(self.thresholds):
            raise KernelArgumentError(
                f"at_least = {self.at_least}, expected 0 to {len(self.thresholds)}"
            )
        if any(math.isnan(value) for value in self.thresholds):
            raise KernelArgumentError(f"thresholds {self.thresholds}, expected numbers")

    @property
    def drafts(self) -> int:
        """Drafts per request."""
        return len(self.thresholds)

    @property
    def as_fp32(self) -> tuple[float, ...]:
        """The thresholds rounded to fp32."""
        return tuple(struct.unpack("f", struct.pack("f", value))[0] for value in self.thresholds)


def by_threshold(threshold: float, *, at_least: int = 1) -> LiveRule:
    """One threshold for all five drafts."""
    return LiveRule((threshold,) * DRAFTS, at_least)


def by_position(*thresholds: float, at_least: int = 1) -> LiveRule:
    """Thresholds of drafts 2 to 5; the first draft has 0.

    Raises:
        KernelArgumentError: not four.
    """
    if len(thresholds) != DRAFTS - 1:
        raise KernelArgumentError(f"{len(thresholds)} thresholds, expected {DRAFTS - 1}")
    return LiveRule((0.0, *thresholds), at_least)


def fixed(drafts: int) -> LiveRule:
    """So many drafts, whatever their confidence: 1 to 5.

    Raises:
        KernelArgumentError: another number.
    """
    if not 1 <= drafts <= DRAFTS:
        raise KernelArgumentError(f"fixed to {drafts} drafts, expected 1 to {DRAFTS}")
    return LiveRule((math.inf,) * DRAFTS, drafts)


def parse(text: str) -> LiveRule:
    """A rule as profiles write it: ``conf:T``, ``conf:a,b,c,d`` (drafts 2 to 5) or ``1`` to ``5``.

    Raises:
        KernelArgumentError: none of these forms.
    """
    kind, colon, rest = text.partition(":")
    try:
        if not colon:
            return fixed(int(kind))
        values = [float(part) for part in rest.split(",")]
    except ValueError as bad:
        raise _unreadable(text) from bad
    if kind != "conf" or len(values) not in (1, DRAFTS - 1):
        raise _unreadable(text)
    # As rules these are sound; in a profile 5 for 0.5 would verify a single draft for ever.
    if not all(0.0 <= value <= 1.0 for value in values):
        raise KernelArgumentError(f"live rule {text!r}, expected thresholds from 0 to 1")
    return by_threshold(values[0]) if len(values) == 1 else by_position(*values)


def _unreadable(text: str) -> KernelArgumentError:
    return KernelArgumentError(
        f"live rule {text!r}, expected conf:T, conf:a,b,c,d or a number from 1 to {DRAFTS}"
    )


def check(confidence: torch.Tensor, rule: LiveRule, out: torch.Tensor) -> None:
    """Refuse what the op cannot take.

    Raises:
        KernelArgumentError: naming the argument, its value and the expected one.
    """
    require_shape("confidence", confidence, (None, rule.drafts))
    require_dtype("confidence", confidence, torch.float32)
    require_contiguous_rows("confidence", confidence)
    require_shape("out", out, (SLOTS,))
    require_dtype("out", out, torch.int64)
    require_contiguous("out", out)
    require_same_device(confidence=confidence, out=out)
    if confidence.shape[0] > SLOTS:
        raise KernelArgumentError(
            f"confidence: {confidence.shape[0]} requests, expected at most {SLOTS}"
        )
