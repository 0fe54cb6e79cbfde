"""The phases of an engine's start, read from its log; each line moves a rank only forward."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Phase = Literal["starting", "rendezvous", "weights", "memory pool", "graphs", "warm-up", "serving"]
PHASES: tuple[Phase, ...] = (
    "starting", "rendezvous", "weights", "memory pool", "graphs", "warm-up", "serving"
)  # fmt: skip

# Log lines of SGLang 0.5.21 and 0.5.23, read in their sources and seen on the CPU engine.
_MARKS: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"Init (?:torch distributed|parallel) begin"), "rendezvous"),
    (re.compile(r"Load weight begin"), "weights"),
    (re.compile(r"Load weight end"), "memory pool"),
    (re.compile(r"Capture .{0,60}(?:CUDA|cuda) graph begin"), "graphs"),
    (re.compile(r"Uvicorn running on|Application startup complete"), "warm-up"),
    (re.compile(r"The server is fired up and ready to roll"), "serving"),
)
_LOADED = re.compile(r"shards:\s+(\d+)% Completed \| (\d+)/(\d+)")
_KV_TOKENS = re.compile(r"\b(?:max_total_num_tokens|full_token)=(\d+)")


@dataclass(frozen=True)
class RankProgress:
    """How far one rank has come."""

    phase: Phase = "starting"
    loaded_shards: int | None = None
    total_shards: int | None = None
    kv_tokens: int | None = None

    def after(self, line: str) -> RankProgress:
        """The progress once this log line was seen; unchanged where it says nothing."""
        progress = self
        for pattern, phase in _MARKS:
            if pattern.search(line) and PHASES.index(phase) > PHASES.index(progress.phase):
                progress = replace(progress, phase=phase)
        if loaded := _LOADED.search(line):
            progress = replace(progress, loaded_shards=int(loaded[2]), total_shards=int(loaded[3]))
        if pool := _KV_TOKENS.search(line):
            progress = replace(progress, kv_tokens=int(pool[1]))
        return progress

    def describe(self) -> str:
        """The phase as people read it, such as ``weights 3/48``."""
        if self.phase == "weights" and self.total_shards:
            return f"weights {self.loaded_shards}/{self.total_shards}"
        return self.phase
