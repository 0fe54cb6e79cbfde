"""Every public failure case is judged as it must be; healthy texts stay quiet."""

from __future__ import annotations

import pytest

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.finding import Finding
from tests.casefiles import ALL, Variant
from tests.checks.expectations import ALONE_RIGHT, ALSO_RIGHT, FORBIDDEN, SAID

FAULTY = [variant for variant in ALL if variant.kind == "faulty"]
QUIET = [variant for variant in ALL if variant.kind == "quiet"]


def own(variant: Variant) -> list[Finding]:
    """Findings with the case's own code."""
    found = diagnose(variant.readings).findings
    return [finding for finding in found if finding.code == variant.case["code"]]


def loud(variant: Variant) -> list[Finding]:
    found = diagnose(variant.readings).findings
    return [f for f in found if f.outcome != "pass" and f.severity != "info"]


def text(finding: Finding) -> str:
    return " | ".join((finding.observed, finding.expected, finding.why, finding.fix))


@pytest.mark.parametrize("variant", FAULTY, ids=lambda variant: variant.id)
def test_fault_is_named_with_its_verdict(variant: Variant) -> None:
    assert diagnose(variant.readings).unread == ()
    verdicts = [finding.verdict for finding in own(variant)]
    wanted = variant.case["verdict"]
    if wanted == ["VALUES"]:
        # No single word: what must be said is in SAID.
        assert verdicts
    else:
        assert set(verdicts) & set(wanted)


@pytest.mark.parametrize("variant", FAULTY, ids=lambda variant: variant.id)
def test_finding_names_the_place_and_the_figures_of_the_case(variant: Variant) -> None:
    found = own(variant)
    for place, words in SAID[variant.case["id"]]:
        right = [f for f in found if all(word in text(f) for word in words)]
        assert right, (words, [text(finding) for finding in found])
        if place is not None:
            assert place in {finding.node for finding in right}


@pytest.mark.parametrize("case", sorted(FORBIDDEN))
def test_bait_is_not_taken(case: str) -> None:
    (variant,) = (variant for variant in FAULTY if variant.case["id"] == case)
    for finding in own(variant):
        assert [word for word in FORBIDDEN[case] if word in finding.observed] == []


@pytest.mark.parametrize("variant", FAULTY, ids=lambda variant: variant.id)
def test_finding_that_fails_says_what_mends_it_and_shows_its_text(variant: Variant) -> None:
    for finding in own(variant):
        if finding.outcome == "fail":
            assert finding.fix
            assert finding.why
            assert finding.observed
            assert finding.evidence


@pytest.mark.parametrize("variant", FAULTY, ids=lambda variant: variant.id)
def test_no_other_detector_fires_on_a_case_without_a_reason(variant: Variant) -> None:
    beside = {f.code for f in loud(variant)} - {variant.case["code"]}
    assert beside == set(ALSO_RIGHT.get(variant.case["id"], {}))


@pytest.mark.parametrize("variant", QUIET, ids=lambda variant: variant.id)
def test_healthy_texts_stay_quiet(variant: Variant) -> None:
    assert diagnose(variant.readings).unread == ()
    assert loud(variant) == []


def test_each_text_of_a_case_alone_raises_nothing_that_the_case_does_not() -> None:
    """A paste is often half a scene: what is missing must not become an alarm."""
    wrong = []
    for variant in ALL:
        case = variant.case["id"]
        right = {**ALSO_RIGHT.get(case, {}), **ALONE_RIGHT.get(case, {})}
        allowed = {variant.case["code"], *right}
        for reading in variant.readings:
            alone = variant._replace(readings=(reading,))
            codes = {finding.code for finding in loud(alone)}
            if variant.kind == "quiet" and codes:
                wrong.append((variant.id, reading.source, codes))
            elif codes - allowed:
                wrong.append((variant.id, reading.source, codes - allowed))
    assert wrong == []
