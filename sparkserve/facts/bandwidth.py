"""What pair tests measured between two nodes."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
