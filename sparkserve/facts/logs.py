"""Logs of engines and containers as lines with rank and time."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
