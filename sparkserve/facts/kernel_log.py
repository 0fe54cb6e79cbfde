"""Lines of the kernel: dmesg and journal."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
