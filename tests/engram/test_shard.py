import os
import struct

import pytest

from sparkserve.engram.shard import (
    HEADER_BYTES,
    ShardHeader,
    ShardName,
    read_header,
    row_bytes_of,
    write_shard,
)
from sparkserve.errors import ShardError

ROWS = [bytes([n]) * row_bytes_of(64) for n in range(7)]
HEADER = ShardHeader(layer=3, row_start=10, row_end=17, total_rows=40, row_bytes=66)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "engram-l3-r0of4.bin"
    write_shard(path, HEADER, ROWS)
    return path


def damage(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_written_shard_reads_back(shard):
    assert read_header(shard) == HEADER
    assert shard.read_bytes()[HEADER_BYTES:] == b"".join(ROWS)


def test_the_header_bytes_follow_the_published_format():
    packed = ShardHeader(1, 96000564, 192001740, 384006168, 264).pack()
    assert len(packed) == 4096
    assert packed[:8] == b"DSV41EN1"
    assert struct.unpack_from("<5Q", packed, 8) == (1, 96000564, 192001740, 384006168, 264)
    assert not packed[48:].strip(b"\0")


@pytest.mark.parametrize(
    ("start", "end", "size_bytes"),
    [
        # Published sizes of the DeepSeek-V4.1 tables: TP4 layer 1 rank 0, equal and by columns.
        (0, 96001542, 25_344_411_184),
        (0, 96000564, 25_344_152_992),
        (0, 0, 4096),
    ],
)
def test_file_sizes_match_the_published_ones(start, end, size_bytes):
    assert ShardHeader(1, start, end, 384006168, 264).file_bytes == size_bytes


def test_names_are_written_and_read():
    assert ShardName(14, 2, 3).file_name == "engram-l14-r2of3.bin"
    assert ShardName.parse("engram-l14-r2of3.bin") == (14, 2, 3, "contiguous")
    assert ShardName(1, 0, 4, "strided").file_name == "engram-l1-r0of4.strided.bin"
    assert ShardName.parse("engram-l1-r0of4.strided.bin") == (1, 0, 4, "strided")
    # Other spellings of the same numbers would let one shard have two names.
    for other in ("engram-l01-r0of4.bin", "engram-l1-r4of4.bin", "engram-l1-r0of4.bin.part", "x"):
        assert ShardName.parse(other) is None


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (0, b"SPKENGS1", "at byte 0: magic"),
        (8, struct.pack("<Q", 4), "at byte 8: header says layer 4, the name says layer 3"),
        (16, struct.pack("<Q", 18), "at byte 16: rows 18 to 17 run backwards"),
        (24, struct.pack("<Q", 41), "at byte 24: rows end at 41, but the table has 40 rows"),
        (40, struct.pack("<Q", 65), "at byte 40: 65 bytes per row"),
        (40, struct.pack("<Q", 0), "at byte 40: 0 bytes per row"),
        (4000, b"\x07", "at byte 4000: reserved byte is 0x07"),
        (24, struct.pack("<Q", 18), "at byte 4558: file ends here, expected 4624 bytes"),
        (24, struct.pack("<Q", 16), "at byte 4492: file goes on here, expected 4492 bytes"),
    ],
)
def test_each_defect_has_its_own_sentence_with_path_and_byte(shard, offset, data, words):
    damage(shard, offset, data)
    with pytest.raises(ShardError) as caught:
        read_header(shard)
    assert str(caught.value).startswith(str(shard))
    assert words in str(caught.value)


def test_a_missing_shard_is_named(tmp_path):
    with pytest.raises(ShardError, match=r"engram-l0-r0of1\.bin: cannot be read: No such file"):
        read_header(tmp_path / "engram-l0-r0of1.bin")


def test_a_cut_header_is_found(shard):
    os.truncate(shard, 4095)
    with pytest.raises(ShardError, match="at byte 4095: header ends here"):
        read_header(shard)


def test_an_empty_range_is_a_valid_shard(tmp_path):
    path = tmp_path / "engram-l0-r7of8.bin"
    header = ShardHeader(0, 5, 5, 5, 33)
    write_shard(path, header, [])
    assert read_header(path) == header


def test_a_failed_write_leaves_the_old_file_and_no_part(shard):
    before = shard.read_bytes()
    with pytest.raises(ShardError, match="4492 bytes given, expected 4558"):
        write_shard(shard, HEADER, ROWS[:-1])
    assert shard.read_bytes() == before
    assert [path.name for path in shard.parent.iterdir()] == [shard.name]


def test_an_interrupted_source_leaves_nothing(tmp_path):
    def rows():
        yield ROWS[0]
        raise RuntimeError("source went away")

    with pytest.raises(RuntimeError, match="went away"):
        write_shard(tmp_path / "engram-l3-r0of4.bin", HEADER, rows())
    assert list(tmp_path.iterdir()) == []
