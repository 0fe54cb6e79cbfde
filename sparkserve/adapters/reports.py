"""Install reports: each engine process leaves one file that says what it installed."""

from __future__ import annotations

import os
from pathlib import Path

from sparkserve.model.engine_spec import InstallReport


def report_path(run_dir: str, pid: int) -> Path:
    """``<run_dir>/reports/<pid>.json``."""
    return Path(run_dir) / "reports" / f"{pid}.json"


def write_report(run_dir: str, report: InstallReport) -> Path:
    """Write a process's report, replacing its earlier one; a reader never sees half a file."""
    path = report_path(run_dir, report.pid)
    write_whole(path, report.model_dump_json(indent=1))
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a small file by part name, fsync and rename; parents are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
