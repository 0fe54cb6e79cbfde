"""Environment variables of containers, images and rendered runs."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
