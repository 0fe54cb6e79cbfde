"""Every probe's parser against recorded output: one case per file in tests/facts/<probe>/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkserve.facts import registry
from sparkserve.facts.probe import Probe, interpret
from sparkserve.model.facts import Unobserved

HERE = Path(__file__).parent
PROBES = {probe.id: probe for probe in registry.ALL}
CASES = sorted(HERE.glob("*/*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_output_parses_to_the_recorded_fact(path: Path) -> None:
    case = json.loads(path.read_text())
    probe = PROBES[path.parent.name]
    fact = interpret(probe, (case.get("status", 0), "\n".join(case["output"])))
    if "unobserved" in case:
        assert isinstance(fact, Unobserved), fact
        assert case["unobserved"] in fact.reason
    else:
        assert fact == probe.kind.model_validate(case["fact"])


def test_every_probe_has_recorded_output() -> None:
    assert {path.parent.name for path in CASES} == set(PROBES)


@pytest.mark.parametrize("probe", registry.ALL, ids=lambda probe: probe.id)
def test_missing_section_is_unobserved(probe: Probe[Any]) -> None:
    assert isinstance(interpret(probe, None), Unobserved)


@pytest.mark.parametrize("probe", registry.ALL, ids=lambda probe: probe.id)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=400), status=st.sampled_from([0, 0, 0, 1, 124]))
def test_no_text_makes_a_parser_raise(probe: Probe[Any], text: str, status: int) -> None:
    fact = interpret(probe, (status, text))
    assert isinstance(fact, probe.kind | Unobserved)
