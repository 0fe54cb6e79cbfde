"""Keep a node's root from filling up: old run folders go, a log that grows is cut.

Nothing of a run that still lives is removed, and never the newest runs: their logs are what
explains the last failure.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from sparkserve.model import run_files
from sparkserve.node import follow

KEPT_RUNS = 20
LOG_LIMIT_BYTES = 256 << 20
LOG_KEPT_BYTES = 64 << 20
"""What stays of a cut log, in ``engine.log.1``."""

log = logging.getLogger(__name__)


def prune_runs(own: Path, *, kept: int = KEPT_RUNS) -> list[Path]:
    """Remove the oldest ended runs beside ``own`` until ``kept`` are left.

    Returns:
        The removed folders. A folder that cannot be removed is logged and left.
    """
    folders = sorted((p for p in own.parent.iterdir() if p.is_dir()), key=lambda p: p.name)
    removed = []
    for folder in folders[: max(0, len(folders) - kept)]:
        if folder == own or _lives(folder):
            continue
        try:
            shutil.rmtree(folder)
        except OSError:
            log.exception("cannot remove the old run %s", folder)
            continue
        removed.append(folder)
    return removed


def bound_log(path: Path, *, limit_bytes: int = LOG_LIMIT_BYTES) -> bool:
    """Cut a log that has grown past the limit; its newest part moves to ``<name>.1``.

    The engine goes on writing into the same file (it appends, so it continues at the new end);
    what it writes during the cut may be lost.

    Returns:
        Whether it was cut.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return False
        kept_bytes = min(LOG_KEPT_BYTES, limit_bytes)
        with path.open("rb") as source, path.with_name(f"{path.name}.1").open("wb") as old:
            os.fchmod(old.fileno(), 0o600)
            source.seek(-kept_bytes, os.SEEK_END)
            shutil.copyfileobj(source, old)
        os.truncate(path, 0)
    except OSError:
        # A full disk must not end the guard; the next turn tries again.
        log.exception("cannot cut %s", path)
        return False
    return True


def _lives(folder: Path) -> bool:
    state = follow.read_json(folder / run_files.STATE)
    return isinstance(state, dict) and "guard_pid" in state and follow.guard_lives(state)
