import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.engram.ownership import (
    columns_range,
    equal_range,
    owned_columns,
    owned_ranges,
    segments_of,
)
from sparkserve.errors import ConfigError

LAYOUTS = ("columns", "equal", "strided")
TP = (1, 2, 3, 4, 5, 7, 8)
BOUNDS = {layer: DEEPSEEK_V41_FLASH.bounds(layer) for layer in (1, 14)}

# Published range starts of the released tables, and their ends.
EQUAL_AND_COLUMNS = [
    (3, 1, "equal", "0 128002056 256004112 384006168"),
    (3, 1, "columns", "0 128000880 256002934 384006168"),
    (3, 14, "equal", "0 128005560 256011121 384016682"),
    (3, 14, "columns", "0 128004290 256009984 384016682"),
    (4, 1, "equal", "0 96001542 192003084 288004626 384006168"),
    (4, 1, "columns", "0 96000564 192001740 288003654 384006168"),
    (4, 14, "equal", "0 96004170 192008341 288012511 384016682"),
    (4, 14, "columns", "0 96003054 192007016 288011564 384016682"),
    (8, 1, "equal", "0 48000771 96001542 144002313 192003084 240003855 288004626 336005397 "
                    "384006168"),
    (8, 1, "columns", "0 48000217 96000564 144001069 192001740 240002613 288003654 336004849 "
                      "384006168"),
]  # fmt: skip
STRIDED_ROWS = [
    (4, 1, "96001386 96001494 96001572 96001716"),
    (4, 14, "96003988 96004134 96004252 96004308"),
    (3, 1, "128001894 128002068 128002206"),
    (3, 14, "128005432 128005526 128005724"),
]


def numbers(text):
    return [int(word) for word in text.split()]


@pytest.mark.parametrize(("tp", "layer", "layout", "cuts"), EQUAL_AND_COLUMNS)
def test_contiguous_ranges_match_the_published_ones(tp, layer, layout, cuts):
    ranges = [owned_ranges(BOUNDS[layer], layout, rank, tp) for rank in range(tp)]
    assert ranges == [(pair,) for pair in itertools.pairwise(numbers(cuts))]


@pytest.mark.parametrize(("tp", "layer", "rows"), STRIDED_ROWS)
def test_strided_rows_match_the_published_ones(tp, layer, rows):
    ranks = [owned_ranges(BOUNDS[layer], "strided", rank, tp) for rank in range(tp)]
    assert [sum(each.rows for each in ranges) for ranges in ranks] == numbers(rows)


def test_strided_deals_the_heads_of_every_order_over_the_ranks():
    heads = {tp: [owned_columns("strided", rank, tp, 24) for rank in range(tp)] for tp in (3, 4, 8)}
    # Orders have eight columns each: 0-7 bigrams, 8-15 trigrams, 16-23 four-grams.
    per_order = {
        tp: [[sum(c // 8 == order for c in columns) for order in range(3)] for columns in ranks]
        for tp, ranks in heads.items()
    }
    assert per_order[4] == [[2, 2, 2]] * 4
    assert per_order[8] == [[1, 1, 1]] * 8
    assert per_order[3] == [[3, 3, 2], [3, 2, 3], [2, 3, 3]]
    assert heads[4][1] == (1, 5, 9, 13, 17, 21)


# The same examples on every machine, and no verdict on its speed.
same_everywhere = settings(deadline=None, derandomize=True, max_examples=60)


def local_row(segments, row_id):
    for first_id, end_id, first_row in segments:
        if first_id <= row_id < end_id:
            return first_row + row_id - first_id
    return None


@st.composite
def tables(draw):
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    return tuple(itertools.accumulate(sizes, initial=0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tp", TP)
@same_everywhere
@given(bounds=tables())
def test_every_row_has_exactly_one_owner_and_one_place_in_its_file(layout, tp, bounds):
    owners = []
    for rank in range(tp):
        ranges = owned_ranges(bounds, layout, rank, tp)
        in_file = [row for start, end in ranges for row in range(start, end)]
        assert in_file == sorted(in_file)
        segments = segments_of(ranges)
        places = [local_row(segments, row) for row in range(bounds[-1])]
        assert {row: place for row, place in enumerate(places) if place is not None} == {
            row: place for place, row in enumerate(in_file)
        }
        owners += in_file
    assert sorted(owners) == list(range(bounds[-1]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tp", TP)
@same_everywhere
@given(bounds=tables())
def test_owned_columns_are_exactly_the_columns_of_the_owned_rows(layout, tp, bounds):
    columns = len(bounds) - 1
    for rank in range(tp):
        owned = owned_columns(layout, rank, tp, columns)
        if owned is None:
            assert layout == "equal" or (layout == "columns" and columns % tp)
            continue
        rows = [row for column in owned for row in range(bounds[column], bounds[column + 1])]
        ranges = owned_ranges(bounds, layout, rank, tp)
        assert rows == [row for start, end in ranges for row in range(start, end)]


@pytest.mark.parametrize("tp", TP)
@pytest.mark.parametrize("layer", [1, 14])
def test_ranks_of_the_released_tables_differ_by_little_but_for_strided_on_odd_counts(layer, tp):
    for layout in LAYOUTS:
        rows = [
            sum(each.rows for each in owned_ranges(BOUNDS[layer], layout, rank, tp))
            for rank in range(tp)
        ]
        assert sum(rows) == BOUNDS[layer][-1]
        columns = [owned_columns("strided", rank, tp, 24) for rank in range(tp)]
        if layout == "strided" and 24 % tp:
            # 5 ranks own 5, 5, 5, 5, 4 columns; 7 ranks own 4, 4, 4, 3, 3, 3, 3.
            assert sorted({len(each) for each in columns}) == [24 // tp, 24 // tp + 1]
            assert max(rows) / min(rows) == pytest.approx((24 // tp + 1) / (24 // tp), rel=1e-4)
        else:
            assert max(rows) / min(rows) < 1.0001


def test_whole_columns_where_they_divide_and_equal_rows_where_not():
    bounds = (0, 5, 12, 23, 36, 53, 72)
    assert [columns_range(bounds, rank, 3) for rank in range(3)] == [(0, 12), (12, 36), (36, 72)]
    assert columns_range(bounds, 1, 4) == equal_range(72, 1, 4)
    assert columns_range(bounds, 1, 3).rows == 24
    assert owned_columns("columns", 1, 3, 6) == (2, 3)
    assert owned_columns("columns", 1, 4, 6) is None


def test_a_single_rank_owns_everything_in_every_layout():
    for layout in LAYOUTS:
        assert owned_columns(layout, 0, 1, 6) == (0, 1, 2, 3, 4, 5)


def test_more_ranks_than_columns_leave_ranks_without_rows():
    bounds = (0, 5, 12)
    assert owned_ranges(bounds, "strided", 3, 4) == ()
    assert owned_columns("strided", 3, 4, 2) == ()


@pytest.mark.parametrize(("rank", "tp"), [(4, 4), (-1, 4), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(rank, tp):
    with pytest.raises(ConfigError, match=f"rank {rank} of {tp}"):
        owned_ranges((0, 5), "columns", rank, tp)
    with pytest.raises(ConfigError, match=f"rank {rank} of {tp}"):
        owned_columns("strided", rank, tp, 24)
