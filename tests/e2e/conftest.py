from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkserve.paths import config_dir
from tests.e2e.fleet import Fleet
from tests.testbed.cluster import Testbed


@pytest.fixture
def fleet(testbed: Testbed, tmp_path: Path) -> Iterator[Fleet]:
    """Four simulated Sparks as new, known to the controller as cluster `fleet`."""
    config_dir().mkdir(parents=True)
    made = Fleet(testbed, tmp_path)
    yield made
    made.close()
