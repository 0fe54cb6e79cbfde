"""Ranks agree only when all read the same spec and installed the same things."""

from __future__ import annotations

from sparkserve.model.engine_spec import InstalledAdapter, InstallReport
from sparkserve.ops.agreement import deciding, disagreement, refusal

TOLD = "a" * 64
ROWS = InstalledAdapter(name="engram_rows", settings_digest="1", targets=())


def report(rank: int = 0, **changes: object) -> InstallReport:
    values = {
        "run_id": "r",
        "rank": rank,
        "pid": 10 + rank,
        "role": "scheduler",
        "status": "installed",
        "engine_version": "0.5.23",
        "told": TOLD,
        "adapters": (ROWS,),
    }
    return InstallReport.model_validate(values | changes)


def test_equal_reports_agree() -> None:
    assert disagreement({0: report(0), 1: report(1)}, TOLD) is None


def test_rank_that_read_another_spec_is_named() -> None:
    odd = report(1, told="b" * 64)
    assert disagreement({0: report(0), 1: odd}, TOLD) == (
        "rank 1 read another spec (bbbbbbbbbbbb, expected aaaaaaaaaaaa)"
    )


def test_all_ranks_wrong_alike_is_still_wrong() -> None:
    both = {rank: report(rank, told="b" * 64) for rank in (0, 1)}
    assert disagreement(both, TOLD) is not None


def test_other_engine_version_is_named() -> None:
    odd = report(2, engine_version="0.5.21")
    assert "rank 2 runs sglang 0.5.21" in str(disagreement({0: report(0), 2: odd}, TOLD))


def test_missing_and_differing_adapters_are_named() -> None:
    assert "engram_rows" in str(disagreement({0: report(0), 1: report(1, adapters=())}, TOLD))
    changed = ROWS.model_copy(update={"settings_digest": "2"})
    assert "differ in engram_rows" in str(
        disagreement({0: report(0), 1: report(1, adapters=(changed,))}, TOLD)
    )


def test_only_the_process_that_owns_the_model_decides() -> None:
    assert deciding([report(role="main"), report(role="child")]) is None
    assert deciding([report(role="main"), report(pid=99)]) == report(pid=99)


def test_refusal_of_any_process_counts() -> None:
    refused = report(role="main", status="refused", reason="target moved")
    assert refusal([report(), refused]) == refused
