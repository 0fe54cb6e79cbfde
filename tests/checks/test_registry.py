"""Checks, readers and asks fit together: nothing is judged that nobody reads."""

from __future__ import annotations

from collections import Counter

import pytest

from sparkserve.checks.check import Check
from sparkserve.checks.registry import ALL
from sparkserve.facts.environment import Environment
from sparkserve.facts.probe import Context, Probe
from sparkserve.facts.reader import Ask, Reader
from sparkserve.facts.registry import ALL as PROBES
from sparkserve.facts.registry import ASKS, READERS
from sparkserve.facts.ssh import Connection
from sparkserve.facts.wanted import Wanted
from tests.casefiles import CASES, case

CODES = {case(folder.name[:3])["code"] for folder in CASES.glob("B[0-9][0-9]-*")}


def takers(ask: Ask) -> list[Reader]:
    return [reader for reader in READERS if reader.takes(ask.reading("node", 0, ""))]


# Doctor itself writes whether it could log in, and what its profile wants.
LIVE = {kind for ask in ASKS for reader in takers(ask)[:1] for kind in reader.gives}
LIVE |= {Connection, Wanted}
# `docker inspect` tells variables as well; without them it is no less of use.
LIVE |= {Environment}
GIVEN = {kind for reader in READERS for kind in reader.gives}


def test_ids_are_unique() -> None:
    for ids in (
        [check.id for check in ALL],
        [reader.id for reader in READERS],
        [*(ask.id for ask in ASKS), *(probe.id for probe in PROBES)],
    ):
        assert [one for one, count in Counter(ids).items() if count > 1] == []


def test_every_code_of_the_public_cases_has_a_check() -> None:
    assert len(CODES) == 99
    assert CODES - {code for check in ALL for code in (check.code, *check.also)} == set()


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.id)
def test_check_is_whole(check: Check) -> None:
    for code in (check.code, *check.also):
        assert code == code.upper()
        assert code.replace("_", "").isalnum()
    assert check.id == check.id.upper()
    assert check.title
    assert check.title == check.title.strip().rstrip(".")
    assert check.stages
    assert check.why
    assert check.fix
    assert check.symptom


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.id)
def test_what_a_check_needs_is_read_from_some_text(check: Check) -> None:
    kinds = [need for need in check.needs if not isinstance(need, Probe)]
    assert [kind.__name__ for kind in kinds if kind not in GIVEN] == []
    assert [need.id for need in check.needs if isinstance(need, Probe) and need not in PROBES] == []


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.id)
def test_check_has_a_live_question_or_says_why_only_texts_can_tell(check: Check) -> None:
    asked = [need for need in check.needs if isinstance(need, Probe) or need in LIVE]
    if check.text_only:
        assert len(check.text_only) > 20
    else:
        assert asked


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.id)
def test_answer_of_an_ask_is_taken_by_exactly_one_reader(ask: Ask) -> None:
    assert [reader.id for reader in takers(ask)] != []
    assert len(takers(ask)) == 1, [reader.id for reader in takers(ask)]


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.id)
def test_ask_runs_a_script_and_names_its_answer_once(ask: Ask) -> None:
    assert ask.script(Context(root="~/sparkserve")).strip()
    assert " " not in ask.id
    assert [n for n in (ask.command, ask.path, ask.what) if n is not None] != []


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.id)
def test_reader_takes_something_and_gives_something(reader: Reader) -> None:
    assert reader.gives
    assert reader.commands or reader.paths or reader.whats
