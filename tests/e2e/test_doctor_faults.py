"""Doctor finds what is wrong on simulated Sparks: the right node, the right code, what mends it.

Each scene of `doctor_faults` is read once, over real SSH, and saved; every one of its faults and
the replay of what was saved are tests of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import doctor_scenes_network, doctor_scenes_nodes
from tests.e2e.doctor_faults import Case, Scene
from tests.e2e.doctor_fleet import Answer, DoctorFleet, Finding, told
from tests.testbed.cluster import Testbed
from tests.testbed.disk import REPOSITORY
from tests.testbed.options import Options
from tests.testbed.plugin import require_testbed

pytestmark = pytest.mark.testbed

SCENES = (*doctor_scenes_network.SCENES, *doctor_scenes_nodes.SCENES)
CASES = [(scene, case) for scene in SCENES for case in scene.cases]


class Seen(NamedTuple):
    """What doctor said of a scene, and where it saved what it read."""

    answer: Answer
    bundle: Path


Look = Callable[[Scene], Seen]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoctorFleet]:
    """Four healthy nodes with real file systems, checkpoint and shards."""
    require_testbed()
    # bound, so that all nodes see the same code even where it changes while they run
    with Testbed(Options(nvme="ext4", nvme_mib=4096, binds=(str(REPOSITORY),))) as testbed:
        made = DoctorFleet(testbed, tmp_path_factory.mktemp("doctor"))
        made.fill_disks()
        yield made


@pytest.fixture(scope="module")
def look(fleet: DoctorFleet) -> Look:
    """Break the nodes as a scene says, ask doctor, mend them; once per scene."""

    seen: dict[str, Seen] = {}

    def looked(scene: Scene) -> Seen:
        if scene.name not in seen:
            seen[scene.name] = read(scene)
        return seen[scene.name]

    def read(scene: Scene) -> Seen:
        bundle = fleet.folder / f"bundle-{scene.name}"
        with ExitStack() as broken:
            for case in scene.cases:
                node = fleet.nodes[(case.node or 1) - 1]
                broken.enter_context(case.inject(fleet, node))
            fleet.write_cluster(topology=scene.topology, count=scene.nodes)
            profile = fleet.write_profile(scene.name, **dict(scene.profile))
            answer = fleet.doctor("--save", bundle, *scene.arguments, profile=profile)
        fleet.write_cluster()
        return Seen(answer, bundle)

    return looked


def masked(finding: Finding) -> Finding:
    """A finding without the numbers that identify a machine, which a bundle replaces."""
    identity = re.compile(r"\b[0-9a-f]{32}\b")
    return {
        key: identity.sub("<id>", value) if isinstance(value, str) else value
        for key, value in finding.items()
    }


def name_of(node: int | None) -> str | None:
    return None if node is None else f"spark{node}"


@pytest.mark.parametrize(
    ("scene", "case"), CASES, ids=[f"{scene.name}: {case.name}" for scene, case in CASES]
)
def test_fault_is_found_on_its_node_with_what_mends_it(
    look: Look, scene: Scene, case: Case
) -> None:
    answer = look(scene).answer
    found = [one for one in answer.of(case.code) if one["node"] == name_of(case.node)]
    assert found, f"nothing of {case.code} on {name_of(case.node)}:\n{told(answer.bad)}"
    fitting = [
        one
        for one in found
        if re.search(case.observed, one["observed"]) and re.search(case.fix, one["fix"])
    ]
    assert fitting, told(found)
    assert case.severity in {one["severity"] for one in fitting}
    assert all(one["why"] for one in fitting)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_nothing_else_is_blamed(look: Look, scene: Scene) -> None:
    """Every failed finding belongs to a fault of the scene, or follows from one of that node."""
    answer = look(scene).answer
    allowed = {
        (code, name_of(node))
        for case in scene.cases
        for code in (case.code, *case.follows)
        for node in (case.node, *case.also)
    }
    strange = [one for one in answer.bad if (one["code"], one["node"]) not in allowed]
    assert strange == [], told(strange)
    assert bool(answer.code) == any(one["severity"] == "error" for one in answer.bad)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_replay_of_what_was_saved_finds_the_same(
    look: Look, fleet: DoctorFleet, scene: Scene
) -> None:
    seen = look(scene)
    again = fleet.replay(seen.bundle, *(word for word in scene.arguments if word != "--bandwidth"))
    assert [masked(one) for one in again.findings] == [masked(one) for one in seen.answer.findings]
    assert again.code == seen.answer.code
