"""Unified memory beyond MemAvailable: CMA, swap, fragmentation, reserves, page cache."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
