"""Rows by id from packed shards, through the native row store."""

import random

import pytest

from sparkserve.engram.rows import open_rows, row_file
from sparkserve.engram.shard import ShardIdentity, write_shard
from sparkserve.errors import ShardError

BOUNDS = (0, 5, 12, 23, 36, 53, 72)
DIM, WIDTH = 64, 66


@pytest.fixture(scope="module")
def table():
    source = random.Random("rows")
    return [source.randbytes(WIDTH) for _ in range(BOUNDS[-1])]


def write(folder, shard, table):
    path = folder / shard.file_name
    rows = [table[row] for start, end in shard.ranges for row in range(start, end)]
    write_shard(path, shard.header, rows)
    return path


@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_id_gives_its_row_on_its_owner_and_zeros_on_all_others(tmp_path, table, layout, tp):
    source = random.Random(f"{layout} {tp}")
    ids = [*range(len(table)), *source.choices(range(len(table)), k=50)]
    source.shuffle(ids)
    found = [[] for _ in ids]
    for rank in range(tp):
        shard = ShardIdentity(3, rank, tp, layout, BOUNDS, WIDTH)
        weights, scales = bytearray(DIM * len(ids)), bytearray(2 * len(ids))
        with open_rows(write(tmp_path, shard, table), shard) as store:
            store.lookup_into(memoryview(bytearray(as_int64(ids))).cast("q"), weights, scales)
        for place, rows in enumerate(found):
            row = weights[place * DIM : (place + 1) * DIM] + scales[place * 2 : (place + 1) * 2]
            if any(row):
                rows.append(bytes(row))
    assert found == [[table[row]] for row in ids]


def as_int64(ids):
    return b"".join(row.to_bytes(8, "little") for row in ids)


def test_the_store_is_told_what_the_header_proves(tmp_path, table):
    shard = ShardIdentity(3, 1, 2, "strided", BOUNDS, WIDTH)
    file = row_file(write(tmp_path, shard, table), shard)
    # Columns 1, 3 and 5: 7, 13 and 19 rows.
    assert (file.rows, file.total_ids, file.weight_bytes, file.scale_bytes) == (39, 72, 64, 2)
    placed = [(each.first_id, each.end_id, each.first_row) for each in file.segments]
    assert placed == [(5, 12, 0), (23, 36, 7), (53, 72, 20)]
    assert file.data_offset_bytes == 4096


def test_a_shard_of_another_rank_is_never_opened(tmp_path, table):
    mine = ShardIdentity(3, 0, 2, "columns", BOUNDS, WIDTH)
    path = write(tmp_path, mine, table)
    with pytest.raises(ShardError, match="row_start is 0, but layout columns gives rank 1"):
        open_rows(path, ShardIdentity(3, 1, 2, "columns", BOUNDS, WIDTH))
