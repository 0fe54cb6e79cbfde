"""Runs on the controller: one folder per run, and one lock per cluster."""

from __future__ import annotations

from sparkserve.runs.events import EventHistory, EventWriter, read_events
from sparkserve.runs.lock import ClusterLock
from sparkserve.runs.store import (
    RunDirectory,
    RunEntry,
    create,
    create_new,
    latest,
    list_runs,
    load,
    new_run_id,
    open_run,
    runs_dir,
    without_secrets,
)

__all__ = [
    "ClusterLock",
    "EventHistory",
    "EventWriter",
    "RunDirectory",
    "RunEntry",
    "create",
    "create_new",
    "latest",
    "list_runs",
    "load",
    "new_run_id",
    "open_run",
    "read_events",
    "runs_dir",
    "without_secrets",
]
