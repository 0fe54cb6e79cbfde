"""docs/format/engram-shard.md draws the headers that the code writes."""

import re
from pathlib import Path

import pytest

from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.engram.shard import HEADER_BYTES, HEADER_OFFSETS, MAGIC, STRIDED_MAGIC

PAGE = (Path(__file__).parents[2] / "docs" / "format" / "engram-shard.md").read_text()
U64 = re.compile(r"^\| (\d+) \| 8 \| u64 \| (\w+) \|", re.MULTILINE)


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def drawn(name):
    return {field: int(byte) for byte, field in U64.findall(section(f"Header of {name}"))}


def test_every_field_stands_at_the_byte_where_the_code_reports_it():
    assert {"magic": 0, **HEADER_OFFSETS["DSV41EN1"]} == drawn("DSV41EN1")
    strided = {"magic": 0, **HEADER_OFFSETS["SPKENGS1"]}
    # Columns are judged as one field: their number, and then their indices.
    assert strided.pop("columns") == drawn("SPKENGS1").pop("column_count")
    assert {**strided, "column_count": 48} == drawn("SPKENGS1")


@pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
def test_a_written_header_holds_every_drawn_field_and_nothing_else(layout):
    header = DEEPSEEK_V41_FLASH.shard(14, layout, 1, 4).header
    packed = header.pack()
    name = packed[:8].decode()
    values = {
        field: int.from_bytes(packed[byte : byte + 8], "little")
        for field, byte in drawn(name).items()
    }
    assert values.pop("magic") in (MAGIC, STRIDED_MAGIC)
    columns = getattr(header, "columns", ())
    assert values.pop("column_count", 0) == len(columns)
    assert values == {field: getattr(header, field) for field in values}
    reserve = 56 + 4 * len(columns) if layout == "strided" else 48
    assert packed[reserve:] == bytes(HEADER_BYTES - reserve)


def test_the_magics_are_the_drawn_ones_and_read_as_text():
    for name, magic in (("DSV41EN1", MAGIC), ("SPKENGS1", STRIDED_MAGIC)):
        assert magic.to_bytes(8, "little").decode() == name
        assert f"| {name} | `{magic:#018x}` |" in PAGE
        assert f"| 0 | 8 | u64 | magic | `{magic:#018x}`" in section(f"Header of {name}")


def test_the_two_contiguous_layouts_differ_by_as_little_as_the_page_says():
    cuts = [
        (DEEPSEEK_V41_FLASH.shard(layer, layout, rank, 4).ranges[0].start)
        for layer in (1, 14)
        for rank in (1, 2, 3)
        for layout in ("columns", "equal")
    ]
    apart = [abs(one - other) for one, other in zip(cuts[::2], cuts[1::2], strict=True)]
    assert min(apart) > 0
    assert max(apart) < LARGEST_DIFFERENCE


LARGEST_DIFFERENCE = int(re.search(r"differ by less than ([\d,]+) rows", PAGE)[1].replace(",", ""))
