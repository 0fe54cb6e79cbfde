"""Counters of row reads, kept in one small file per process for ``sparkserve status``.

The file is ``<run_dir>/stats/engram-<pid>.json``::

    {"schema_version": 1, "rank": 0, "pid": 4711,
     "layers": [{"layer": 1, "lookups": 3, "ids": 120, "rows_read": 97, "hits": 20, ...}]}
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkserve_native import StoreStats

from sparkserve.adapters.reports import write_whole

logger = logging.getLogger(__name__)

LayerFigures = Callable[[], dict[str, Any]]
"""Figures of one layer as they stand now; called from the writing thread, so it must neither
wait for the engine's thread nor call CUDA, which a running capture would not survive."""


def store_figures(layer: int, stats: StoreStats) -> dict[str, Any]:
    """A store's sums since it was opened, under the names of the file.

    Returns:
        ``ids``: owned row ids asked for, duplicates included, = ``hits`` + ``misses``;
        ``rows_read``: different rows fetched from the shard, summed over the lookups.
    """
    return {
        "layer": layer,
        "lookups": stats.lookups,
        "ids": stats.owned_ids,
        "rows_read": stats.unique_ids,
        "hits": stats.hits,
        "misses": stats.misses,
        "reads": stats.reads,
        "extents": stats.extents,
        "bytes_read": stats.bytes_read,
        "p50_us": stats.p50_job_ns // 1000,
        "p99_us": stats.p99_job_ns // 1000,
        "engine": stats.engine,
        "engine_reason": stats.engine_reason,
        "direct_io": stats.direct_io,
        "cache_bytes": stats.cache_bytes,
        "cache_slots": stats.cache_slots,
    }


class StatsFile:
    """Writes the counters while they change, at most once per interval, and at exit."""

    def __init__(self, run_dir: str, rank: int, interval_s: float) -> None:
        self._path = Path(run_dir) / "stats" / f"engram-{os.getpid()}.json"
        self._rank = rank
        self._interval_s = interval_s
        self._layers: list[LayerFigures] = []
        self._written = ""
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def add(self, figures: LayerFigures) -> None:
        """Write one more layer's figures; the first call starts the writing thread."""
        with self._lock:
            self._layers.append(figures)
            first = len(self._layers) == 1
        if first:
            threading.Thread(target=self._keep_writing, name="engram-stats", daemon=True).start()
            atexit.register(self.close)

    def write(self) -> None:
        """Write the file if a figure changed since it was last written."""
        with self._lock:
            text = json.dumps(
                {
                    "schema_version": 1,
                    "rank": self._rank,
                    "pid": os.getpid(),
                    "layers": [figures() for figures in self._layers],
                }
            )
            if text != self._written:
                write_whole(self._path, text)
                self._written = text

    def close(self) -> None:
        """Stop the thread and write what is left."""
        self._stop.set()
        self.write()

    def _keep_writing(self) -> None:
        failed = False
        while True:
            try:
                self.write()
                failed = False
            except OSError as error:
                # A full disk costs the figures, never the answers; one line per failure is enough.
                if not failed:
                    logger.warning("sparkserve: %s cannot be written: %s", self._path, error)
                failed = True
            if self._stop.wait(self._interval_s):
                return
