"""Golden files: what a command prints, kept as text beside its test.

``UPDATE_GOLDEN=1 pytest ...`` writes them anew; look at the difference before it is committed.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest


def check(path: Path, text: str) -> None:
    """Compare a text with a golden file, and show where they differ."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        pytest.fail(f"no golden file {path.name}; UPDATE_GOLDEN=1 writes it")
    expected = path.read_text(encoding="utf-8")
    if text != expected:
        difference = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), "golden", "now", lineterm=""
        )
        pytest.fail(f"{path.name} differs:\n" + "\n".join(difference), pytrace=False)
