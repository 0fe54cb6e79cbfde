from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.harness import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()
