"""Whose readings count for which place."""

from __future__ import annotations

import pytest

from sparkserve.checks.scene import Scene
from sparkserve.facts.reader import Observation
from sparkserve.facts.unified import Meminfo
from sparkserve.model.reading import Reading


@pytest.mark.parametrize(
    ("place", "is_known"),
    [("rank1", True), ("node2", True), ("somebox", True), (None, True), ("rank0", False)],
)
def test_the_only_reading_counts_unless_it_surely_is_of_another_spark(
    place: str | None, is_known: bool
) -> None:
    only = Reading(text="", node="rank1", command="free")
    scene = Scene(None, None, observations=(Observation("rank1", Meminfo(), Meminfo, only),))
    assert (scene.near(place, Meminfo) is not None) is is_known
