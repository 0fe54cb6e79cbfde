"""How the reads of a text spread over ranks: predicted, and counted from its row ids."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from sparkserve.engram.balance import (
    WARN_RATIO,
    imbalance,
    predicted_imbalance,
    predicted_rows,
)
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.engram.ownership import owned_ranges

BOUNDS = (0, 10, 20, 30, 40)


def test_the_published_reads_of_four_ranks_are_worth_a_warning():
    # Rows read by each rank in a prefill of 16k tokens, from the published case.
    ratio = imbalance([60664, 141210, 233871, 320066])
    assert round(ratio, 1) == 5.3
    assert ratio > WARN_RATIO


@pytest.mark.parametrize(
    ("rows", "ratio"), [([], 1), ([0, 0], 1), ([7], 1), ([3, 6], 2), ([0, 1], math.inf)]
)
def test_ratios_by_hand(rows, ratio):
    assert imbalance(rows) == ratio


def test_reads_follow_the_columns_that_a_rank_owns():
    reads = [1, 1, 5, 9]
    assert predicted_rows(reads, BOUNDS, "columns", 2) == (2, 14)
    assert predicted_rows(reads, BOUNDS, "strided", 2) == (6, 10)
    # Three ranks cut columns: rank 0 has rows 0 to 13, column 0 and 3 of 10 rows of column 1.
    assert predicted_rows(reads, BOUNDS, "equal", 3) == pytest.approx((1.3, 3.7, 11))
    assert predicted_rows(reads, BOUNDS, "columns", 3) == predicted_rows(reads, BOUNDS, "equal", 3)


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
def test_no_read_is_lost_or_counted_twice(layout, tp):
    bounds = DEEPSEEK_V41_FLASH.bounds(1)
    reads = [float(column + 1) for column in range(24)]
    assert sum(predicted_rows(reads, bounds, layout, tp)) == pytest.approx(sum(reads))


def test_text_is_predicted_to_be_even_with_strided_and_uneven_with_whole_orders_together():
    model = DEEPSEEK_V41_FLASH
    for reuse in ("chunk", "cache"):
        assert predicted_imbalance(model, "strided", 4, reuse) == pytest.approx(1)
        assert predicted_imbalance(model, "columns", 1, reuse) == 1
    # As counted for prose, docs/measurements/engram-row-balance.md.
    assert round(predicted_imbalance(model, "columns", 4, "chunk"), 2) == 1.54
    assert round(predicted_imbalance(model, "equal", 3, "chunk"), 2) == 1.54
    assert round(predicted_imbalance(model, "columns", 4, "cache"), 2) == 2.49
    assert round(predicted_imbalance(model, "strided", 3, "cache"), 2) == 1.11


def test_the_measurement_counts_the_rows_of_each_rank(monkeypatch):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: run `make engine`")
    path = Path(__file__).parents[2] / "tools" / "row_balance.py"
    spec = importlib.util.spec_from_file_location("row_balance", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    wanted = np.array([0, 4, 11, 12, 25, 29, 30, 39])
    for layout in module.LAYOUTS:
        for tp in (1, 2, 3, 4):
            expected = [
                sum(start <= row < end for row in wanted for start, end in ranges)
                for ranges in (owned_ranges(BOUNDS, layout, rank, tp) for rank in range(tp))
            ]
            assert module.rows_of_ranks(wanted, BOUNDS, layout, tp) == expected
