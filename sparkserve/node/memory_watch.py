"""Memory of the node while the engine starts and serves: stop before the host locks up."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

from sparkserve.model import run_files
from sparkserve.model.engine_spec import GuardSpec
from sparkserve.node import processes
from sparkserve.node.follow import LogTail
from sparkserve.units import GIB, format_bytes

_FLOOR_SAMPLES = 3
_FLOOR_PERIOD_S = 1.0
_LOADING = re.compile(r"Load weight begin")
_LOADED = re.compile(r"Load weight end|Capture .{0,60}(?i:cuda) graph begin")
_READY = re.compile(r"The server is fired up and ready to roll|Uvicorn running on")
"""A worker's engine never says that it is fired up; its HTTP server comes after its graphs."""

log = logging.getLogger(__name__)

End = Callable[[str], None]


def _available_bytes() -> int | None:
    """MemAvailable; None where it cannot be read, which is not low."""
    try:
        return processes.memory_available_bytes()
    except (OSError, ValueError):
        log.exception("cannot read MemAvailable")
        return None


async def watch_floor(guard: GuardSpec, end: End) -> None:
    """End the run once MemAvailable stayed below the floor for ``_FLOOR_SAMPLES`` samples."""
    floor_bytes, low = guard.memory_floor_bytes, 0
    while floor_bytes:
        available_bytes = await asyncio.to_thread(_available_bytes)
        if available_bytes is not None:
            low = low + 1 if available_bytes < floor_bytes else 0
            if low >= _FLOOR_SAMPLES:
                end(
                    f"MemAvailable {format_bytes(available_bytes)} stayed below the floor of "
                    f"{format_bytes(floor_bytes)} for {low} s"
                )
                return
        await asyncio.sleep(_FLOOR_PERIOD_S)


async def watch_start(guard: GuardSpec, run_dir: Path, end: End) -> None:
    """From the end of the weights until the engine is ready: end the run where the rule says so.

    While weights load memory falls fast and by design, so nothing is judged then.
    """
    if not guard.start_memory.is_on:
        return
    tail = LogTail(run_dir / run_files.ENGINE_LOG)
    loaded, before_gib = False, None
    while True:
        for line in await asyncio.to_thread(tail.lines):
            if _LOADING.search(line):
                # A draft model is loaded after the model: that fall is by design, too.
                loaded, before_gib = False, None
            loaded = loaded or _LOADED.search(line) is not None
            if _READY.search(line):
                log.info("the start is over; its memory rule rests")
                return
        now_bytes = await asyncio.to_thread(_available_bytes) if loaded else None
        if now_bytes is not None:
            now_gib = now_bytes / GIB
            if why := guard.start_memory.why(before_gib, now_gib, guard.start_sample_s):
                end(f"{why}, between the weights and ready")
                return
            before_gib = now_gib
        await asyncio.sleep(guard.start_sample_s)
