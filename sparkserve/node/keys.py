"""The secrets of a run on its node: they are not needed any more once its rank has ended."""

from __future__ import annotations

from pathlib import Path

from sparkserve.model.run_files import ENGINE_CONFIG, GUARD_KEY


def forget(run_dir: Path) -> None:
    """Remove the API key and the guards' key from a run's folder; nothing where there are none.

    Raises:
        OSError: a file is there and cannot be removed.
    """
    for name in (ENGINE_CONFIG, GUARD_KEY):
        (run_dir / name).unlink(missing_ok=True)
