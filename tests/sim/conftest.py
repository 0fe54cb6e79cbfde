"""Fixtures of the simulated engine's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.sim.light import Rank, StartRank


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartRank]:
    """``start("--light-fault", ..., env={...})`` starts a rank on a free port."""
    ranks: list[Rank] = []

    def start_rank(*argv: str, env: dict[str, str] | None = None) -> Rank:
        port = free_port()
        log_file = tmp_path / f"rank{len(ranks)}.log"
        words = [sys.executable, "-m", "sparkserve.sim.light_engine", "--model-path", "/models/x",
                 "--served-model-name", "light", "--port", str(port), *argv]  # fmt: skip
        with log_file.open("w") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, text=True, env={**os.environ, **(env or {})}
            )
        ranks.append(Rank(process, port, log_file))
        return ranks[-1]

    yield start_rank
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()
