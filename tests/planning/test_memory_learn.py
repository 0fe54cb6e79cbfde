"""What an engine said about memory in an earlier run corrects the plan."""

from __future__ import annotations

import pytest

from sparkserve.planning.memory import build
from sparkserve.planning.memory_learn import differences, learn
from sparkserve.planning.memory_model import V41_FLASH
from sparkserve.planning.memory_types import MemoryWish, NodeMemory

LOG = """\
[2026-09-14 10:20:58 TP0] Init torch distributed begin.
[2026-09-14 10:21:04 TP0] Load weight begin. avail mem=115.20 GB
[2026-09-14 10:26:10 TP0] Load weight end. elapsed=305.00 s, type=x, avail mem=37.10 GB, mem usage=78.10 GB.
[2026-09-14 10:26:20 TP0] Load weight begin. avail mem=37.00 GB
[2026-09-14 10:26:40 TP0] Load weight end. elapsed=20.00 s, type=y, avail mem=34.20 GB, mem usage=2.80 GB.
[2026-09-14 10:27:11 TP0] DSV4 memory calculation: unified=True, bytes_per_full_token=1680.00, \
available_bytes=11.08 GB, c128_state_fixed=0.05 GB, swa_fixed=0.67 GB, full_token=6620000
[2026-09-14 10:27:12 TP0] max_total_num_tokens=6600000, chunked_prefill_size=4096
[2026-09-14 10:28:00 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=22.50 GB
[2026-09-14 10:29:00 TP0] Capture cuda graph end. Time elapsed: 60 s. mem usage=4.75 GB. avail mem=17.75 GB.
"""  # noqa: E501


def wish() -> MemoryWish:
    nodes = tuple(NodeMemory(node=f"spark{n}", available_gib=115.2) for n in range(1, 5))
    return MemoryWish(
        model=V41_FLASH, nodes=nodes, fraction=0.8, kv_tokens=8_000_000, context_tokens=1_048_576,
        chunked_indexer=True, max_running_requests=16, speculation=True,
    )  # fmt: skip


def test_figures_of_a_log() -> None:
    found = learn("run-1", {"spark1": LOG})
    assert found is not None
    assert found.loaded_gib == pytest.approx(115.20 - 34.20)
    assert found.kv_bytes_per_token == 1680
    assert found.fixed_gib == pytest.approx(0.72)
    assert found.pool_tokens == 6_600_000
    assert found.graphs_gib == 4.75


def test_of_several_ranks_the_one_that_leaves_least_counts() -> None:
    other = LOG.replace("avail mem=34.20", "avail mem=33.00").replace(
        "max_total_num_tokens=6600000", "max_total_num_tokens=6100000"
    )
    found = learn("run-1", {"spark1": LOG, "spark2": other, "spark3": "nothing about it"})
    assert found is not None
    assert found.loaded_gib == pytest.approx(82.2)
    assert found.pool_tokens == 6_100_000
    assert set(found.ranks) == {"spark1", "spark2"}


def test_of_two_starts_in_one_log_the_newest_counts() -> None:
    found = learn("run-1", {"spark1": LOG.replace("=115.20", "=98.70") + LOG})
    once = learn("run-1", {"spark1": LOG})
    assert found is not None
    assert found == once
    half = LOG + LOG.partition("[2026-09-14 10:27:11")[0].replace("=34.20", "=35.20")
    broken_off = learn("run-1", {"spark1": half})
    assert broken_off is not None
    assert broken_off.loaded_gib == pytest.approx(80.0)
    assert broken_off.graphs_gib is None


@pytest.mark.parametrize("figure", ["...", "1.2.3", "1e9", "-", ""])
def test_figures_that_are_none_do_no_harm(figure: str) -> None:
    garbled = LOG.replace("34.20", figure).replace("1680.00", figure).replace("11.08", figure)
    assert learn("run-1", {"spark1": garbled}) is not None


def test_a_log_without_figures_teaches_nothing() -> None:
    assert learn("run-1", {"spark1": "The server is fired up and ready to roll!"}) is None
    assert learn("run-1", {}) is None


def test_the_short_form_of_the_line_is_understood_too() -> None:
    figures = "available_bytes=1.98 GB, swa_fixed=0.67 GB, full_token=841925"
    found = learn("x", {"rank0": f"bytes_per_full_token=1670.75, {figures}"})
    assert found is not None
    assert found.pool_tokens == 841_925
    # The formula of the engine, from its rounded figures.
    told = found.ranks["rank0"]
    assert told.budget_gib is not None
    assert told.fixed_gib is not None
    tokens = (told.budget_gib - told.fixed_gib) * (1 << 30) / 1670.75
    assert tokens == pytest.approx(841_925, rel=0.001)


def test_the_plan_uses_what_was_learned_and_tells_from_where() -> None:
    found = learn("20260914-run", {"spark1": LOG})
    assert found is not None
    before = build(wish())
    after = build(found.apply(wish()))
    assert {term.id for term in before.ranks[0].terms} >= {"weights", "draft", "nccl"}
    terms = {term.id: term for term in after.ranks[0].terms}
    assert terms["weights"].gib == pytest.approx(81.0)
    assert "draft" not in terms
    assert terms["graphs"].gib == 4.75
    assert "20260914-run" in terms["weights"].note
    assert after.wish.kv_bytes == 1680
    # 0.8 x 115.2 - 81 - 0.1 - 0.72 GiB, by hand.
    assert after.pool_tokens == pytest.approx((10.34) * (1 << 30) / 1680, rel=0.001)


def test_planned_and_learned_stand_side_by_side() -> None:
    found = learn("x", {"spark1": LOG})
    assert found is not None
    rows = {row.title: row for row in differences(build(wish()), found)}
    assert rows["loaded"].planned == pytest.approx(79.63, abs=0.01)
    assert rows["loaded"].learned == pytest.approx(81.0)
    assert rows["KV per token"].planned == 1670.75
