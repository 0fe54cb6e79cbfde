import itertools

import pytest

from sparkserve.engram.ownership import columns_range, equal_range

# Row counts of the published tables, layers 1 and 14.
L1 = 384006168
L14 = 384016682


def test_equal_ranges_match_the_published_ones():
    assert [equal_range(L1, r, 4).start for r in range(4)] == [0, 96001542, 192003084, 288004626]
    assert [equal_range(L14, r, 3).start for r in range(3)] == [0, 128005560, 256011121]
    assert equal_range(L14, 2, 3).end == L14


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("bounds", [(0, 5, 12, 23, 36, 53, 72), (0, 2, 5), (0, 7)])
def test_every_row_has_exactly_one_owner(bounds, tp):
    for ranges in (
        [columns_range(bounds, rank, tp) for rank in range(tp)],
        [equal_range(bounds[-1], rank, tp) for rank in range(tp)],
    ):
        rows = itertools.chain.from_iterable(range(start, end) for start, end in ranges)
        assert list(rows) == list(range(bounds[-1]))


def test_whole_columns_where_they_divide_and_equal_rows_where_not():
    bounds = (0, 5, 12, 23, 36, 53, 72)
    assert [columns_range(bounds, rank, 3) for rank in range(3)] == [(0, 12), (12, 36), (36, 72)]
    assert columns_range(bounds, 1, 4) == equal_range(72, 1, 4)
    assert columns_range(bounds, 1, 3).rows == 24
