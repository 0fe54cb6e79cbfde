"""Pytest fixtures of the simulated cluster.

``testbed``       four nodes (mini flavour), shared by the session, as new for every test
``make_testbed``  a factory for other sizes and flavours; taken down at the end of the test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.testbed import requirements
from tests.testbed.cluster import Testbed
from tests.testbed.options import Init, Options

MakeTestbed = Callable[..., Testbed]


def require_testbed(init: Init = "mini") -> None:
    """Skip the calling test with the reason where no testbed can run."""
    reason = requirements.missing(init)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _session_testbed() -> Iterator[list[Testbed]]:
    """The session's cluster once some test has asked for it (a list of none or one)."""
    require_testbed()
    made: list[Testbed] = []
    yield made
    for cluster in made:
        cluster.down()


@pytest.fixture
def testbed(_session_testbed: list[Testbed]) -> Testbed:
    """Four nodes, as new: faults undone, facts as built, disks empty, host keys kept."""
    if _session_testbed:
        _session_testbed[0].reset()
    else:
        cluster = Testbed(Options())
        cluster.up()
        _session_testbed.append(cluster)
    return _session_testbed[0]


@pytest.fixture
def make_testbed() -> Iterator[MakeTestbed]:
    """``make_testbed(nodes=2, init="systemd", ...)``: see `Options` for what can be chosen."""
    made: list[Testbed] = []

    def make(**options: Any) -> Testbed:
        chosen = Options(**options)
        require_testbed(chosen.init)
        cluster = Testbed(chosen)
        cluster.up()
        made.append(cluster)
        return cluster

    yield make
    for cluster in reversed(made):
        cluster.down()
