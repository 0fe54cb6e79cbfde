"""Counters of row reads, kept in one small file per process for ``sparkserve status``.

The file is ``<run_dir>/stats/engram-<pid>.json``::

    {"schema_version": 1, "rank": 0, "pid": 4711,
     "layers": [{"layer": 0, "lookups": 3, "ids": 120, "rows_read": 97}]}
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkserve.adapters.reports import write_whole

logger = logging.getLogger(__name__)


@dataclass
class LayerCounters:
    """What one layer asked for since the process began; written by one thread."""

    layer: int
    lookups: int = 0
    """Calls that asked for at least one owned row."""
    ids: int = 0
    """Owned row ids asked for, duplicates included."""
    rows_read: int = 0
    """Different rows read from the shard, summed over the lookups."""


class StatsFile:
    """Writes the counters while they change, at most once per interval, and at exit."""

    def __init__(self, run_dir: str, rank: int, interval_s: float) -> None:
        self._path = Path(run_dir) / "stats" / f"engram-{os.getpid()}.json"
        self._rank = rank
        self._interval_s = interval_s
        self._layers: list[LayerCounters] = []
        self._written = ""
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def layer(self, layer: int) -> LayerCounters:
        """Counters of one more layer; the first call starts the writing thread."""
        counters = LayerCounters(layer)
        with self._lock:
            self._layers.append(counters)
            first = len(self._layers) == 1
        if first:
            threading.Thread(target=self._keep_writing, name="engram-stats", daemon=True).start()
            atexit.register(self.close)
        return counters

    def write(self) -> None:
        """Write the file if a counter changed since it was last written."""
        with self._lock:
            text = json.dumps(
                {
                    "schema_version": 1,
                    "rank": self._rank,
                    "pid": os.getpid(),
                    "layers": [asdict(each) for each in self._layers],
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
