"""The GPU by nvidia-smi: clocks, power, temperature, processes; [N/A] stays unknown."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
