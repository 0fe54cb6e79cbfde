"""Which file a rank must have: the published sizes, and every other file refused."""

import struct

import pytest

from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.engram.header import MAX_COLUMNS
from sparkserve.engram.shard import (
    HEADER_BYTES,
    ShardHeader,
    ShardIdentity,
    StridedHeader,
    read_header,
    read_shard,
    write_shard,
)
from sparkserve.errors import ConfigError, ShardError

# The published sizes in bytes; (tp, layout, layer) -> every rank's, or the set of them.
SIZES = {
    (2, "equal", 1): [50_688_818_272] * 2,
    (2, "equal", 14): [50_690_206_120] * 2,
    (2, "columns", 1): [50_688_463_456, 50_689_173_088],
    (2, "columns", 14): [50_689_856_320, 50_690_555_920],
    (3, "equal", 1): [33_792_546_880] * 3,
    (3, "equal", 14): [33_793_471_936, 33_793_472_200, 33_793_472_200],
    (3, "columns", 1): [33_792_236_416, 33_792_546_352, 33_792_857_872],
    (3, "columns", 14): [33_793_136_656, 33_793_507_312, 33_793_772_368],
    (4, "equal", 1): [25_344_411_184] * 4,
    (4, "equal", 14): [25_345_104_976] * 2 + [25_345_105_240] * 2,
    (4, "columns", 1): [25_344_152_992, 25_344_314_560, 25_344_509_392, 25_344_667_792],
    (4, "columns", 14): [25_344_810_352, 25_345_050_064, 25_345_204_768, 25_345_355_248],
    (8, "equal", 1): [12_672_207_640] * 8,
}
EXTREMES = {
    (8, "equal", 14): (12_672_554_536, 12_672_554_800),
    (8, "columns", 1): (12_672_061_384, 12_672_352_312),
    (8, "columns", 14): (12_672_390_328, 12_672_702_376),
}
NODE_GIB = {3: 62.9, 4: 47.2, 8: 23.6}

BOUNDS = (0, 5, 12, 23, 36)
"""Four columns: 5, 7, 11 and 13 rows."""


def sizes(tp, layout, layer):
    return [
        DEEPSEEK_V41_FLASH.shard(layer, layout, rank, tp).header.file_bytes for rank in range(tp)
    ]


@pytest.mark.parametrize(("tp", "layout", "layer"), SIZES)
def test_file_sizes_are_the_published_ones(tp, layout, layer):
    assert sorted(sizes(tp, layout, layer)) == sorted(SIZES[tp, layout, layer])


@pytest.mark.parametrize(("tp", "layout", "layer"), EXTREMES)
def test_smallest_and_largest_files_of_eight_ranks_are_the_published_ones(tp, layout, layer):
    found = sizes(tp, layout, layer)
    assert (min(found), max(found)) == EXTREMES[tp, layout, layer]


@pytest.mark.parametrize("tp", NODE_GIB)
@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
def test_a_node_stores_as_much_as_published_in_every_layout(tp, layout):
    for rank in range(tp):
        both = sum(
            DEEPSEEK_V41_FLASH.shard(layer, layout, rank, tp).header.file_bytes
            for layer in DEEPSEEK_V41_FLASH.layer_ids
        )
        assert round(both / 2**30, 1) == NODE_GIB[tp]


def test_rows_straddle_pages_and_sectors_as_the_format_page_says():
    assert HEADER_BYTES % 8 == 264 % 8 == 0
    starts = range(HEADER_BYTES, HEADER_BYTES + 264 * 4096, 264)
    across = [row for row, at in enumerate(starts) if at // 4096 != (at + 263) // 4096]
    assert across[:4] == [15, 31, 46, 62]
    assert len(across) / 4096 == 0.0625
    sectors = [(at + 263) // 512 - at // 512 + 1 for at in starts]
    assert set(sectors) == {1, 2}
    assert sum(sectors) / len(sectors) == 1.5


def identity(layout="strided", rank=0, tp=2, **changes):
    fields = {"layer": 3, "bounds": BOUNDS, "row_bytes": 33, **changes}
    return ShardIdentity(rank=rank, tp=tp, layout=layout, **fields)


def write(folder, shard):
    path = folder / shard.file_name
    header = shard.header
    write_shard(path, header, [bytes([1]) * header.row_bytes] * header.rows_in_file)
    return path


def test_the_strided_header_bytes_are_drawn_by_hand(tmp_path):
    packed = identity(rank=1, tp=2, row_bytes=264).header.pack()
    assert len(packed) == 4096
    assert packed[:8] == b"SPKENGS1"
    # layer, rank, tp, rows of columns 1 and 3, bytes per row, number of columns
    assert struct.unpack_from("<6Q", packed, 8) == (3, 1, 2, 20, 264, 2)
    assert struct.unpack_from("<2I", packed, 56) == (1, 3)
    assert not packed[64:].strip(b"\0")
    path = tmp_path / "part"
    path.write_bytes(packed + bytes(20 * 264))
    assert read_header(path) == StridedHeader(3, 1, 2, 20, 264, (1, 3))


@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
@pytest.mark.parametrize("tp", [1, 2, 3, 5, 8])
def test_a_shard_is_accepted_as_itself_and_as_no_other_rank(tmp_path, layout, tp):
    for rank in range(tp):
        mine = identity(layout, rank, tp)
        path = write(tmp_path, mine)
        header = read_shard(path, mine)
        assert header == mine.header
        assert header.segments(BOUNDS) == mine.segments
        for other in range(tp):
            theirs = identity(layout, other, tp)
            if theirs.header != mine.header:
                with pytest.raises(ShardError, match=f"gives rank {other} of {tp}|says"):
                    read_shard(path, theirs)


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        (
            identity("columns", rank=1),
            "at byte 16: row_start is 0, but layout columns gives rank 1",
        ),
        (
            identity("equal"),
            "at byte 24: row_end is 12, but layout equal gives rank 0 of 2 row_end",
        ),
        (identity("strided"), "at byte 0: format DSV41EN1, expected SPKENGS1 for layout strided"),
        (identity("columns", layer=4), "at byte 8: layer is 3, .* layer 4"),
        (identity("columns", bounds=(0, 5, 12, 23, 37)), "at byte 32: total_rows is 36, .* 37"),
        (identity("columns", row_bytes=66), "at byte 40: row_bytes is 33, .* row_bytes 66"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_from_the_shard_that_is_meant_is_named_with_its_byte(tmp_path, meant, words):
    path = write(tmp_path, identity("columns", rank=0))
    with pytest.raises(ShardError, match=words):
        read_shard(path, meant)


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (0, b"DSV41EN1", "at byte 0: magic 0x314e453134565344, expected 0x3153474e454b5053"),
        (8, 4, "at byte 8: header says layer 4, the name says layer 3"),
        (16, 2, "at byte 16: rank 2 of 2 ranks"),
        (16, 1, "at byte 56: column 0, expected 1 for rank 1 of 2"),
        (24, 0, "at byte 16: rank 0 of 0 ranks"),
        (24, 3, "at byte 60: column 2, expected 3 for rank 0 of 3"),
        (32, 17, r"at byte 4624: file ends here, expected 4657 bytes for 17 rows"),
        (32, 15, r"at byte 4591: file goes on here, expected 4591 bytes"),
        (32, 0, "at byte 32: 0 rows in 2 columns"),
        (40, 34, "at byte 40: 34 bytes per row"),
        (48, MAX_COLUMNS + 1, "at byte 48: 1011 columns, expected at most 1010"),
        (48, 3, "at byte 64: column 0, expected 4"),
        (48, 1, "at byte 60: reserved byte is 0x02"),
        (48, 0, "at byte 32: 16 rows in 0 columns"),
        (56, struct.pack("<I", 1), "at byte 56: column 1, expected 0"),
        (4088, 1, "at byte 4088: reserved byte is 0x01"),
    ],
)
def test_each_defect_of_a_strided_shard_has_its_own_sentence(tmp_path, offset, value, words):
    path = write(tmp_path, identity(rank=0))
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value if isinstance(value, bytes) else struct.pack("<Q", value))
    with pytest.raises(ShardError, match=words):
        read_header(path)


def test_a_name_of_another_rank_or_format_is_refused(tmp_path):
    path = write(tmp_path, identity(rank=0))
    for name, words in (
        ("engram-l3-r1of2.strided.bin", "at byte 16: header says rank 0, the name says rank 1"),
        ("engram-l3-r0of4.strided.bin", "at byte 24: header says tp 2, the name says tp 4"),
        ("engram-l3-r0of2.bin", "at byte 0: magic 0x3153474e454b5053"),
    ):
        path = path.rename(path.with_name(name))
        with pytest.raises(ShardError, match=words):
            read_header(path)
    # The name of a part file says nothing.
    assert read_header(path.rename(path.with_name("x.part"))) == identity(rank=0).header


def test_bounds_of_another_table_find_no_row():
    strided = identity(rank=0).header
    with pytest.raises(ConfigError, match="columns have 17 rows, but the file holds 16"):
        strided.segments((0, 5, 12, 24, 36))
    with pytest.raises(ConfigError, match=r"columns \[0, 2\], rank 0 of 2 owns \[0, 2, 4\]"):
        strided.segments((0, 5, 12, 23, 36, 40))
    with pytest.raises(ConfigError, match="end at row 37, the shard's table has 36"):
        ShardHeader(3, 0, 12, 36, 33).segments((0, 37))


def test_columns_that_do_not_fit_the_header_are_refused():
    columns = tuple(range(MAX_COLUMNS + 1))
    with pytest.raises(ConfigError, match="1011 columns in one shard, expected at most 1010"):
        StridedHeader(0, 0, 1, 2000, 33, columns).pack()
    fits = StridedHeader(0, 0, 1, 2000, 33, columns[:-1])
    assert StridedHeader.unpack(fits.pack(), None) == fits
