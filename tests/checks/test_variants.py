"""The same faults as other people paste them: other commands, whole outputs, other numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.reading import Reading
from tests.casefiles import CASES, case

SCENES: list[dict[str, Any]] = [
    scene
    for path in sorted((Path(__file__).parent / "variants").glob("*.toml"))
    for scene in tomllib.loads(path.read_text())["scene"]
]
CODES = {case(folder.name[:3])["code"] for folder in CASES.glob("B[0-9][0-9]-*")}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene["title"])
def test_other_texts_are_judged_as_the_case_is(scene: dict[str, Any]) -> None:
    result = diagnose([Reading(**table) for table in scene["input"]])
    assert [reading.source for reading in result.unread] == []
    loud = [f for f in result.findings if f.outcome != "pass" and f.severity != "info"]
    if "code" not in scene:
        assert loud == []
        return
    own = [f for f in result.findings if f.code == scene["code"]]
    right = [
        f
        for f in own
        if all(word in f"{f.observed} {f.expected} {f.why} {f.fix}" for word in scene["says"])
        and f.verdict == scene.get("verdict", f.verdict)
        and f.node == scene.get("place", f.node)
    ]
    assert right, [(f.code, f.node, f.verdict, f.observed) for f in result.findings]


def test_variants_are_of_many_cases() -> None:
    told = {scene["code"] for scene in SCENES if "code" in scene}
    assert told <= CODES
    assert len(told) >= 40
