"""The balance of row reads: the public case of a contiguous split, and silence where it is even."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkserve.checks import balance
from sparkserve.model.finding import Finding
from sparkserve.model.node_state import Progress, RankStatus
from tests import scenes

CASE = Path(__file__).parent / "cases/B90-PCK_COLUMN_IMBALANCE"


def rank(number: int, reads: Mapping[int, int] | None) -> RankStatus:
    progress = Progress(
        at_s=1.0, log_bytes=1, read_bytes=1, cpu_s=1.0, rss_bytes=1, memory_available_bytes=1,
        processes=1, engram_reads=None if reads is None else dict(reads),
    )  # fmt: skip
    return RankStatus(node=f"spark{number + 1}", rank=number, state="running", progress=progress)


def judged(*reads: Mapping[int, int] | None, layout: str = "columns") -> tuple[Finding, ...]:
    profile = scenes.profile(engram={"directory": "v41", "layout": layout})
    return balance.judge(profile, [rank(number, one) for number, one in enumerate(reads)])


def test_case_b90_is_a_warning_with_the_published_ratio() -> None:
    lines = (CASE / "01-row-reads-in-the-last-16k-prefill.txt").read_text().splitlines()
    (finding,) = judged(*({1: int(line.split()[1])} for line in lines))
    assert (finding.code, finding.verdict, finding.blocks) == (
        "PCK_COLUMN_IMBALANCE", "WARN", False,
    )  # fmt: skip
    assert "rank 3 320,066 rows read, ratio 5.3" in finding.observed
    assert "--layout strided" in finding.fix


@pytest.mark.parametrize(
    "reads",
    [
        ({1: 100_000}, {1: 199_999}),
        ({1: 10}, {1: 9_999}),
        ({1: 100_000},),
        ({1: 100_000}, None),
        (None, None),
        (),
    ],
    ids=["within two", "too few to tell", "one rank", "one silent", "all silent", "no rank"],
)
def test_no_warning_where_reads_are_even_few_or_unknown(
    reads: tuple[Mapping[int, int] | None, ...],
) -> None:
    assert judged(*reads) == ()


def test_layers_are_judged_alone_and_an_idle_rank_counts() -> None:
    even, lopsided = judged({1: 50_000, 14: 0}, {1: 50_000, 14: 20_000}), judged({14: 0}, {14: 1})
    assert [finding.observed for finding in even] == [
        "layer 14: rank 0 0, rank 1 20,000 rows read, ratio inf"
    ]
    assert lopsided == ()


def test_strided_rows_cannot_be_mended_by_striding() -> None:
    (finding,) = judged({1: 10_000}, {1: 30_000}, layout="strided")
    assert finding.fix == ""
