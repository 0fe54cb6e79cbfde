"""Runs engram_modules.py against each engine release; every case there counts as one here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparkserve

SHIM = Path(sparkserve.__file__).parent / "sim" / "cpu_shim"
REPOSITORY = Path(__file__).parents[2]
CASES = Path(__file__).with_name("engram_modules.py")

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("older", [None, "0.5.21"], ids=["installed", "0.5.21"])
@pytest.mark.usefixtures("_engine_installed")
def test_the_adapters_hold_over_the_engines_own_classes(older: str | None) -> None:
    paths = [str(SHIM), str(REPOSITORY)]
    if older is not None:
        folder = REPOSITORY / ".cache" / f"sglang-{older}"
        if not folder.is_dir():
            pytest.skip(f"{folder} is missing: run `make engine`")
        paths.insert(0, str(folder))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SGLANG_USE_CPU_ENGINE": "1"}
    # The engine's own imports warn.
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(CASES)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout
