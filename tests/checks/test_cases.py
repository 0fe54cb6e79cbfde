"""Every public failure case is judged as it must be; healthy texts stay quiet."""

from __future__ import annotations

import pytest

from sparkserve.checks.diagnose import diagnose
from tests.casefiles import ALL, Variant

FAULTY = [variant for variant in ALL if variant.kind == "faulty"]
QUIET = [variant for variant in ALL if variant.kind == "quiet"]


@pytest.mark.parametrize("variant", FAULTY, ids=lambda variant: variant.id)
def test_fault_is_named_with_its_verdict(variant: Variant) -> None:
    result = diagnose(variant.readings)
    assert result.unread == ()
    verdicts = [f.verdict for f in result.findings if f.code == variant.case["code"]]
    wanted = variant.case["verdict"]
    if wanted == ["VALUES"]:
        # The words and figures are asserted beside the check itself.
        assert verdicts
    else:
        assert set(verdicts) & set(wanted)


@pytest.mark.parametrize("variant", QUIET, ids=lambda variant: variant.id)
def test_healthy_texts_stay_quiet(variant: Variant) -> None:
    result = diagnose(variant.readings)
    assert result.unread == ()
    loud = [f for f in result.findings if f.outcome != "pass" and f.severity != "info"]
    assert loud == []
