"""Compiling in a process of its own: the tests' process has Triton's interpreter on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

REPOSITORY = Path(__file__).parents[2]
COMPILES_FOR_SPARK = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8),
    reason=f"needs Triton 3.8 or newer: the tools of {triton.__version__} do not know sm_121",
)


def python(*arguments: str, cache: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run this interpreter on the repository's kernels, without Triton's interpreter.

    cache: where Triton keeps what it compiles; an empty folder makes it compile everything.
    """
    paths = [str(REPOSITORY / "kernels"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        "TRITON_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env=environment,
        timeout=timeout_s,
    )
