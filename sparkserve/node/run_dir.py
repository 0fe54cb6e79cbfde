"""The run directory on a node (``<root>/state/runs/<run id>``): what its files are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPEC = "engine.json"
STATE = "state.json"
ENGINE_LOG = "engine.log"
GUARD_LOG = "guard.log"
GUARD_KEY = "guard.key"
ENGINE_CONFIG = "engine.yaml"
REPORTS = "reports"
STATS = "stats"

LOCK = "serving.lock"
"""In ``<root>/state``: held by the guard of the run that this node serves."""


def read_json(path: Path) -> Any | None:
    """Parsed content of a JSON file, or None where it does not exist or is not JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
