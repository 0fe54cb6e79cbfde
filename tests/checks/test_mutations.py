"""Another fleet with the same fault gets the same verdict; another healthy one stays quiet."""

from __future__ import annotations

import random

import pytest

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.reading import Reading
from tests.casefiles import ALL, Variant
from tests.checks.harmless import CHANGES, Change

DRAWS = 6
"""Random combinations of changes for each case; each single change is tried besides."""


def verdicts(code: str, readings: tuple[Reading, ...]) -> list[str]:
    """What is said under one code; passes stand beside and may be as many as there are texts."""
    found = diagnose(readings)
    assert found.unread == ()
    return sorted({f.verdict for f in found.findings if f.code == code and f.verdict != "PASS"})


def loud(readings: tuple[Reading, ...]) -> list[tuple[str, str]]:
    found = diagnose(readings).findings
    return sorted(
        {(f.code, f.verdict) for f in found if f.outcome != "pass" and f.severity != "info"}
    )


def judged_alike(variant: Variant, readings: tuple[Reading, ...]) -> None:
    code = variant.case["code"]
    assert verdicts(code, readings) == verdicts(code, variant.readings)
    assert loud(readings) == loud(variant.readings)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_one_harmless_change_keeps_every_verdict(change: Change) -> None:
    wrong = []
    for variant in ALL:
        for seed in range(3):
            changed = change(variant.readings, random.Random(seed))
            try:
                judged_alike(variant, changed)
            except AssertionError as error:
                wrong.append(f"{variant.id}, seed {seed}: {str(error).splitlines()[0]}")
                break
    assert wrong == []


@pytest.mark.parametrize("variant", ALL, ids=lambda variant: variant.id)
def test_many_harmless_changes_together_keep_the_verdict(variant: Variant) -> None:
    for seed in range(DRAWS):
        rng = random.Random(f"{variant.id} {seed}")
        readings = variant.readings
        for change in sorted(rng.sample(CHANGES, k=rng.randrange(2, 7)), key=CHANGES.index):
            readings = change(readings, rng)
        judged_alike(variant, readings)


def test_changes_do_change_the_texts() -> None:
    """A change that leaves every case as it is would show nothing."""
    for change in CHANGES:
        changed = [change(variant.readings, random.Random(1)) for variant in ALL]
        assert changed != [variant.readings for variant in ALL], change.__name__
