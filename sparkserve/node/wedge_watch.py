"""Whether the engine of this rank still gets anywhere: its counters, and the GPU's honest power.

An engine that is wedged in a collective answers ``/health`` with 200 and shows a busy GPU. It
is found by what only work does: tokens, and watts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable

from sparkserve.model.engine_spec import GuardSpec
from sparkserve.model.vigil import (
    RUNNING_GAUGES,
    TOKEN_COUNTERS,
    WORK_COUNTERS,
    EngineLook,
    Frozen,
    GpuLook,
    Wedge,
    WedgeRule,
    frozen,
    wedge,
)
from sparkserve.node import processes

_ASK_LIMIT_S = 5.0
_PAGE_LIMIT_BYTES = 4 << 20
_SMI = ("nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+([-+\d.eE]+)(?:\s+\d+)?\s*$")
_KEPT_LOOKS = 4096

log = logging.getLogger(__name__)


class WedgeVigil:
    """Looks at engine and GPU over time; must be fed in order."""

    def __init__(self, rule: WedgeRule) -> None:
        self._rule = rule
        self._engine: list[EngineLook] = []
        self._gpu: list[GpuLook] = []

    def engine(self, look: EngineLook) -> Frozen | None:
        """Take a look at the engine; the stretch for which it stands still, where it does."""
        self._engine.append(look)
        still = frozen(self._engine)
        if still is None:
            self._engine, self._gpu = [look], []
        elif len(self._engine) > _KEPT_LOOKS:
            # Only the first and the newest look of a stretch count.
            del self._engine[1 : _KEPT_LOOKS // 2]
        return still

    def gpu(self, look: GpuLook, still: Frozen) -> Wedge | None:
        """Take a look at the GPU of an engine that stands still; a wedge, where it is one now."""
        if not self._rule.is_idle_power(look):
            # It computes, or nobody knows: what was seen before proves nothing any more.
            self._gpu = []
            return None
        self._gpu.append(look)
        if look.at_s - self._gpu[0].at_s < self._rule.after_s:
            return None
        return wedge(still, self._gpu, self._rule)


def read_page(text: str, at_s: float) -> EngineLook:
    """An engine's page of metrics as a look; what it does not count stays unknown."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            name = found[1].rpartition(":")[2]
            try:
                value = float(found[2])
            except ValueError:
                continue
            # Several ranks of one engine report one gauge; the counters of all of them count.
            merge = max if name in RUNNING_GAUGES else float.__add__
            totals[name] = merge(totals[name], value) if name in totals else value
    return EngineLook(
        at_s=at_s,
        running=next((totals[name] for name in RUNNING_GAUGES if name in totals), None),
        generated=next((totals[name] for name in TOKEN_COUNTERS if name in totals), None),
        others=tuple(totals[name] for name in WORK_COUNTERS if name in totals),
    )


def read_gpu(text: str, at_s: float) -> GpuLook:
    """The first GPU of nvidia-smi's answer; what it does not know stays unknown."""
    first = next(iter(text.splitlines()), "")
    values = [_number(word) for word in first.split(",")]
    if len(values) != 2:
        return GpuLook(at_s=at_s, utilization_percent=None, power_w=None)
    return GpuLook(at_s=at_s, utilization_percent=values[0], power_w=values[1])


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


async def fetch_metrics(port: int) -> str | None:
    """The engine's page of metrics; None where it gives none."""
    try:
        async with asyncio.timeout(_ASK_LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                await writer.drain()
                page = await reader.read(_PAGE_LIMIT_BYTES)
                while more := await reader.read(_PAGE_LIMIT_BYTES):
                    page += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = page.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(b" ")
    return body.decode(errors="replace") if status[1:2] == [b"200"] else None


class GpuQuestion:
    """Asks nvidia-smi, and never again while an earlier question hangs in the driver."""

    def __init__(self) -> None:
        self._stuck: processes.Process | None = None

    async def ask(self) -> str:
        """What nvidia-smi prints; empty where it is missing, fails or hangs.

        It is started without asyncio's own watch over children: the guard reaps every child itself.
        """
        stuck = self._stuck
        if stuck is not None and processes.living(stuck.pid, stuck.start_ticks) is not None:
            return ""
        self._stuck = None
        reader, writer = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            actions = [
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_DUP2, nothing, 2),
            ]
            pid = os.posix_spawnp(_SMI[0], _SMI, os.environ, file_actions=actions)
        except OSError:
            os.close(reader)
            return ""
        finally:
            os.close(writer)
            os.close(nothing)
        return await self._read_end(reader, pid)

    async def _read_end(self, descriptor: int, pid: int) -> str:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb")
        )
        try:
            async with asyncio.timeout(_ASK_LIMIT_S):
                return (await stream.read(-1)).decode(errors="replace")
        except TimeoutError:
            child = processes.read_process(pid)
            if child is not None and child.parent_pid == os.getpid():
                # Its end takes seconds where the driver hangs; peers wait for the guard's word.
                left = await asyncio.to_thread(processes.end, [child], grace_s=0.0)
                self._stuck = next(iter(left), None)
            return ""
        finally:
            transport.close()


async def watch(guard: GuardSpec, port: int, found: Callable[[Wedge | None], None]) -> None:
    """Tell of every wedge, and with None of its end; for as long as the engine is served."""
    vigil, gpu = WedgeVigil(guard.wedge), GpuQuestion()
    told, wedged = "", False
    while True:
        await asyncio.sleep(guard.wedge_sample_s)
        page = await fetch_metrics(port)
        if page is None:
            continue
        still = vigil.engine(read_page(page, time.monotonic()))
        if still is None:
            if wedged:
                found(None)
            told, wedged = "", False
            continue
        look = read_gpu(await gpu.ask(), time.monotonic())
        seen = vigil.gpu(look, still)
        if seen is not None:
            wedged = True
            found(seen)
        elif (words := _why_not(look, guard.wedge)) and words != told:
            told = words
            log.info("no token while %.0f requests run, but %s", still.running, words)


def _why_not(look: GpuLook, rule: WedgeRule) -> str:
    """Why this look is no sign of a wedge; empty where it is one."""
    if look.power_w is None or look.utilization_percent is None:
        return "power and use of the GPU are unknown"
    return "" if rule.is_idle_power(look) else "the GPU works or is idle: no wedge"
