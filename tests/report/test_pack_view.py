"""Packing and checking on a screen: the plan, the bars, the lines of a pipe, the results."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import pytest

from sparkserve.report.console import Answer, Console, Settings
from sparkserve.report.pack_state import PackState, PlainPack, Work, bar, work_lines
from sparkserve.report.pack_view import plan_answer, result_answer
from sparkserve.report.verify_view import verify_answer
from tests import golden
from tests.report import packs

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, answer: Answer) -> None:
    golden.check(GOLDEN / f"{name}.txt", "".join(f"{one.plain}\n" for one in answer.lines))


@pytest.mark.parametrize("width", [80, 160])
def test_plan(width: int) -> None:
    check(f"pack_plan_{width}", plan_answer(packs.dry_run(), width=width))


@pytest.mark.parametrize("width", [80, 160])
def test_result_with_a_failed_rank(width: int) -> None:
    outcomes = [packs.outcome(0), packs.outcome(1), packs.failed(), packs.outcome(3)]
    check(f"pack_failed_{width}", result_answer(packs.result(*outcomes), width=width))


def test_node_that_was_refused_has_nothing_to_go_on_from() -> None:
    (refused,) = packs.dry_run().outcomes
    closing = [
        result_answer(packs.result(*outcomes), width=80).lines[-1].plain
        for outcomes in ([refused], [packs.outcome(0), refused], [packs.failed(), refused])
    ]
    assert closing == [
        "nothing was written",
        "the others are done; nothing was written there",
        "the same command goes on from what was written",
    ]


def test_good_result_names_what_comes_next() -> None:
    answer = result_answer(packs.result(), width=80)
    assert [one.plain for one in answer.lines][-2:] == [
        "next: sparkserve verify --engram --profile v41",
        "      sparkserve launch --profile v41",
    ]
    assert answer.short[0].endswith("manifest-r0of4.json")
    assert answer.data["ok"]


@pytest.mark.parametrize("width", [80, 160])
def test_verdicts(width: int) -> None:
    check(f"verify_{width}", verify_answer(packs.verified(), width=width))


def test_strict_makes_the_unknown_fail_even_where_nothing_failed() -> None:
    mixed = packs.verified()
    known = mixed.model_copy(
        update={"verdicts": mixed.verdicts[:4], "outcomes": mixed.outcomes[:2]}
    )
    assert (mixed.exit_code, known.exit_code) == (1, 0)
    assert known.model_copy(update={"strict": True}).exit_code == 1


def test_rank_that_cannot_be_judged_is_no_failure() -> None:
    mixed = packs.verified()
    unknown = mixed.model_copy(
        update={"verdicts": mixed.verdicts[5:], "outcomes": mixed.outcomes[3:]}
    )
    assert unknown.exit_code == 0


@pytest.mark.parametrize("width", [80, 160])
def test_bars(width: int) -> None:
    state = PackState()
    for event in packs.events():
        state.take(event)
    lines = work_lines(state, packs.BEGIN + timedelta(seconds=20), width=width, height=20)
    golden.check(GOLDEN / f"pack_bars_{width}.txt", "".join(f"{one.plain}\n" for one in lines))
    assert all(len(one.plain) <= width for one in lines)


def test_pipe_gets_a_line_per_rank_and_phase() -> None:
    out = io.StringIO()
    with PlainPack(Console(Settings(), stdout=io.StringIO(), stderr=out)) as view:
        for event in packs.events():
            view.event(event)
        first = out.getvalue()
        again = packs.events()[8]
        view.event(again.model_copy(update={"at": again.at + timedelta(seconds=1)}))
        assert out.getvalue() == first, "told a second ago"
        view.event(again.model_copy(update={"at": again.at + timedelta(seconds=6)}))
    golden.check(GOLDEN / "pack_piped.txt", _without_time(out.getvalue()))


def _without_time(text: str) -> str:
    """The last phase ends by our own clock."""
    head, _, _ = text.rpartition("[3/3]")
    return head


def test_bar_is_full_only_at_the_end() -> None:
    assert [bar(share, 4) for share in (0.0, 0.26, 0.999, 1.0)] == ["░░░░", "█░░░", "███░", "████"]


def test_no_time_is_promised_before_anything_is_known() -> None:
    work = Work(0, "spark1", "running", "pack", done_bytes=1, total_bytes=1000, bytes_per_s=5.0)
    assert work.left_s is None
    work.done_bytes = 500
    assert work.left_s == 100.0
    work.state = "failed"
    assert work.left_s is None
