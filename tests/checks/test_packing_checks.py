"""Packed shards as listings, manifests and progress show them, in several forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkserve.checks.packing import same_layout, slowest_bytes_per_s
from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

ROWS, ROW_BYTES = 96_000_000, 264
WHOLE = ROWS * ROW_BYTES
SHORT = WHOLE - ROW_BYTES
LISTED = {
    "L01.r1.bin": {"rows": ROWS, "row_bytes": ROW_BYTES, "sparse": False},
    "L14.r1.bin": {"rows": ROWS, "row_bytes": ROW_BYTES, "sparse": False},
}
HOLES = 31_250_000  # blocks of 512 bytes: 16.0 GB
FULL = WHOLE // 512


def manifest(data: Any = None, node: str | None = None) -> Reading:
    return what("pack manifest", LISTED if data is None else data, node)


def profile(text: str) -> Reading:
    return what("profile", text, format="yaml")


# --- short and sparse shards


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('stat -c "%n %s %b" engram/*',
         f"engram/L01.r1.bin {SHORT} {FULL}\nengram/L14.r1.bin {WHOLE} {HOLES}\n"),
        ("stat --format='%s %b %n' /data/engram/*.bin",
         f"{WHOLE} {HOLES} /data/engram/L14.r1.bin\n{SHORT} {FULL} /data/engram/L01.r1.bin\n"),
        ("stat -c '%N: %s bytes, %b blocks of %B' /e/*",
         f"'/e/L01.r1.bin': {SHORT} bytes, {FULL} blocks of 512\n"
         f"'/e/L14.r1.bin': {WHOLE} bytes, {HOLES} blocks of 512\n"),
        ("ls -ls /data/engram",
         f"total 41000000\n{FULL // 2} -rw-r--r-- 1 spark spark {SHORT} Nov 30 10:00 L01.r1.bin\n"
         f"{HOLES // 2} -rw-r--r-- 1 spark spark {WHOLE} Nov 30 10:00 L14.r1.bin\n"),
        ("find /data/engram -name '*.bin' -printf '%p %s %b\\n'",
         f"/data/engram/L01.r1.bin {SHORT} {FULL}\n/data/engram/L14.r1.bin {WHOLE} {HOLES}\n"),
        ("stat /data/engram/L01.r1.bin /data/engram/L14.r1.bin",
         f"  File: /data/engram/L01.r1.bin\n  Size: {SHORT}\tBlocks: {FULL}       "
         f"IO Block: 4096   regular file\n  File: /data/engram/L14.r1.bin\n"
         f"  Size: {WHOLE}\tBlocks: {HOLES}   IO Block: 4096   regular file\n"),
    ],
    ids=["stat", "other order", "quoted", "ls", "find", "plain stat"],
)  # fmt: skip
def test_short_and_sparse_shards_are_found_in_any_listing(line: str, text: str) -> None:
    (finding,) = failing("PCK_SHORT_SHARD", command(line, text, "spark7"), manifest())
    assert finding.node == "spark7"
    assert "L01.r1.bin 1 row short" in finding.observed
    assert "L14.r1.bin right size, but only 16.0 GB of 25.3 GB" in finding.observed


def test_manifest_may_be_a_list_with_sizes_and_meant_holes() -> None:
    sizes = [f"x/L01.r1.bin {WHOLE} {HOLES}", f"x/L14.r1.bin {WHOLE} {HOLES}"]
    entries = [
        {"file": "L01.r1.bin", "bytes": WHOLE, "sparse": True},
        {"file": "L14.r1.bin", "size_bytes": WHOLE, "allocated_bytes": HOLES * 512},
    ]
    listing = command("stat -c '%n %s %b' x/*", "\n".join(sizes))
    assert loud(listing, manifest({"files": entries})) == []
    entries[1]["allocated_bytes"] = HOLES * 512 + 4096
    (finding,) = failing("PCK_SHORT_SHARD", listing, manifest({"files": entries}))
    assert "L14" in finding.observed
    assert "L01" not in finding.observed


def test_whole_shards_pass_with_and_without_a_header_and_a_missing_one_is_named() -> None:
    text = f"e/L01.r1.bin {WHOLE} {FULL}\ne/L14.r1.bin {WHOLE + 4096} {FULL + 8}\n"
    listing = command('stat -c "%n %s %b" e/*', text)
    assert [f.outcome for f in about("PCK_SHORT_SHARD", listing, manifest())] == ["pass"]
    half = command('stat -c "%n %s %b" e/*', text.splitlines()[0])
    assert "L14.r1.bin missing" in failing("PCK_SHORT_SHARD", half, manifest())[0].observed
    one = command('stat -c "%n %s %b" e/L01.r1.bin', text.splitlines()[0])
    assert failing("PCK_SHORT_SHARD", one, manifest()) == []


def test_sizes_without_a_manifest_say_nothing() -> None:
    listing = command('stat -c "%n %s %b" e/*', f"e/L01.r1.bin {SHORT} {HOLES}\n")
    assert loud(listing) == []


# --- another split, rank, revision


def told(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, "revision": "dba1be0a", "tp_size": 4, "rank": 2, "layout": "strided"} | (
        changes
    )


PROFILE = "revision: dba1be0a\ntp: 4\nrank_of: {node3: 2}\nlayout: strided\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp_size": 3}, "packed for tp 3, profile wants 4"),
        ({"rank": 1}, "packed for rank 1, this is rank 2"),
        ({"revision": "0badcafe"}, "of revision 0badcafe, profile wants dba1be0a"),
        ({"tp_size": None, "tp": 8}, "packed for tp 8, profile wants 4"),
    ],
)
def test_shards_of_another_split_rank_or_revision_are_found(
    changes: dict[str, Any], words: str
) -> None:
    pack = what("engram/manifest.json", told(**changes), "node3")
    (finding,) = failing("PCK_WORLD_OR_REVISION", pack, profile(PROFILE))
    assert finding.node == "node3"
    assert words in finding.observed


def test_right_shards_pass_and_short_hashes_stand_for_long_ones() -> None:
    pack = Reading(path="/data/engram/manifest.json", node="node3", text=json.dumps(told()))
    assert loud(pack, profile(PROFILE)) == []
    long = what("manifest", told(revision="dba1be0a" + "0" * 32), "node3")
    assert loud(long, profile(PROFILE)) == []


def test_ranks_that_lie_twice_and_splits_that_differ_are_found_without_a_profile() -> None:
    packs = [what("manifest", told(rank=r), n) for n, r in (("a", 0), ("b", 0), ("c", 1))]
    assert [f.node for f in failing("PCK_WORLD_OR_REVISION", *packs)] == ["a", "b"]
    mixed = [what("manifest", told(rank=0), "a"), what("manifest", told(rank=1, tp_size=3), "b")]
    assert len(failing("PCK_WORLD_OR_REVISION", *mixed)) == 2


def test_ranges_of_all_ranks_must_be_the_whole_table() -> None:
    def half(rank: int, start: int, end: int) -> Reading:
        layer = {"layer": 1, "row_start": start, "row_end": end, "total_rows": 100}
        return what("manifest", {"tp": 2, "rank": rank, "layers": [layer]}, f"node{rank + 1}")

    assert failing("PCK_WORLD_OR_REVISION", half(0, 0, 50), half(1, 50, 100)) == []
    gap = failing("PCK_WORLD_OR_REVISION", half(0, 0, 50), half(1, 60, 100))
    assert "layer 1: rows 50 to 60 missing" in gap[0].observed
    end = failing("PCK_WORLD_OR_REVISION", half(0, 0, 50), half(1, 50, 99))
    assert "rows end at 99 of 100" in end[0].observed


# --- layouts


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("contiguous", "strided", False),
        ("contiguous", "columns", True),
        ("contiguous", "equal", True),
        ("columns", "equal", False),
        ("Interleaved", "strided", True),
        ("round_robin", "strided", True),
        ("mystery", "mystery", True),
    ],
)
def test_names_of_layouts(one: str, other: str, same: bool) -> None:
    assert same_layout(one, other) is same
    assert same_layout(other, one) is same


def test_layout_of_the_pack_is_compared_with_the_runtime_or_the_profile() -> None:
    pack = manifest({"layout": "contiguous"})
    env = what("runtime env", "ENGRAM_LAYOUT=strided\n", format="env")
    (finding,) = failing("PCK_LAYOUT_FLAG", pack, env)
    assert "packed contiguous, served strided" in finding.observed
    assert len(failing("PCK_LAYOUT_FLAG", pack, profile("layout: strided\n"))) == 1
    assert loud(pack, what("runtime env", "ENGRAM_LAYOUT=columns\n")) == []


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("layer=1 rows=64 mismatch=48\n", True),
        ("layer=1 rows=64 mismatch=0\nlayer=14 rows=64 mismatch=2\n", True),
        ("layer 14: 3 of 64 rows differ\n", True),
        ('{"layer": 1, "rows": 64, "mismatches": 5}\n', True),
        ("layer=1 rows=64 mismatch=0\nlayer=14 rows=64 mismatch=0\n", False),
    ],
)
def test_rows_that_differ_from_the_checkpoint_fail_the_self_test(text: str, fails: bool) -> None:
    found = about("PCK_LAYOUT_FLAG", what("self-test", text))
    assert [f.outcome for f in found] == ["fail" if fails else "pass"]


# --- balance


@pytest.mark.parametrize(
    "text",
    [
        "rank0 60664\nrank1 141210\nrank2 233871\nrank3 320066\n",
        "rank 3: 320,066 rows\nrank 0: 60,664 rows\nrank 1: 141,210 rows\nrank 2: 233,871 rows\n",
        '{"rank0": 60664, "rank1": 141210, "rank2": 233871, "rank3": 320066}',
        '[{"rank": 0, "row_reads": 60664}, {"rank": 1, "row_reads": 141210},'
        ' {"rank": 2, "row_reads": 233871}, {"rank": 3, "row_reads": 320066}]',
        "\n".join(f'engram_row_reads_total{{rank="{r}"}} {n}'
                  for r, n in enumerate((60664, 141210, 233871, 320066))),
    ],
)  # fmt: skip
def test_uneven_reads_are_told_with_their_ratio(text: str) -> None:
    (finding,) = failing("PCK_COLUMN_IMBALANCE", what("row_reads per rank", text))
    assert (finding.verdict, finding.node) == ("WARN", None)
    assert "ratio 5.3" in finding.observed
    assert "rank 3 320,066" in finding.observed


def test_reads_may_come_one_rank_a_text_and_even_ones_pass() -> None:
    parts = [what("row_reads", str(n), f"rank{r}") for r, n in enumerate((9000, 21000))]
    assert "ratio 2.3" in failing("PCK_COLUMN_IMBALANCE", *parts)[0].observed
    even = what("row_reads per rank", "rank0 9000\nrank1 18000\n")
    assert [f.outcome for f in about("PCK_COLUMN_IMBALANCE", even)] == ["pass"]
    few = what("row_reads per rank", "rank0 2\nrank1 40\n")
    assert about("PCK_COLUMN_IMBALANCE", few) == []


# --- packing over what stands


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("0 0\n330000000 30\n690000000 60\n", "columns: bytes, s"),
        ("0 0\n30 330000000\n60 690000000\n", "columns: s, bytes"),
        ("0 0\n330000000 30\n690000000 60\n", ""),
        ("t=0 bytes=0\nt=30 bytes=330000000\nt=60 bytes=690000000\n", ""),
        ("0 MB after 0 s\n330 MB after 30 s\n690 MB after 60 s\n", ""),
        ('{"s": 0, "bytes": 0}\n{"s": 60, "bytes": 690000000}\n', ""),
    ],
)
def test_slow_pack_is_told_with_its_rate(text: str, note: str) -> None:
    (finding,) = failing("PCK_REWRITE_IN_PLACE", what("packer progress", text, note=note))
    assert "11.5 MB/s" in finding.observed


def test_slow_stretches_count_and_slow_starts_do_not() -> None:
    fast = [(float(t), t * 800_000_000) for t in range(0, 61, 10)]
    stuck = [*fast, (75.0, fast[-1][1]), (95.0, fast[-1][1] + 10**8)]
    assert slowest_bytes_per_s(fast) is None
    assert slowest_bytes_per_s(stuck) == pytest.approx(10**8 / 35)
    assert slowest_bytes_per_s([(0.0, 0), (20.0, 1000)]) is None


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("engram/L01.r0.bin exists size=25344000000", True),
        ("/data/engram/engram-l1-r0of4.bin present, 12 GB", True),
        ("engram/L01.r0.bin does not exist", False),
        ("engram/L01.r0.bin exists, verified, kept", False),
    ],
)
def test_shard_that_stands_is_not_to_be_written_over(line: str, fails: bool) -> None:
    found = about("PCK_REWRITE_IN_PLACE", what("target before start", line + "\n"))
    assert [f.outcome for f in found] == ["fail" if fails else "pass"]
    if fails:
        assert "temp" in found[0].expected


# --- token ids; that our own hash treats padding so is shown in tests/engram/test_hashing.py


def test_padding_becomes_the_pad_token_and_other_strays_fail() -> None:
    batch = what("token ids of one padded batch", "128000 9906 1917 -1 -1")
    (finding,) = failing("PCK_TOKEN_RANGE", batch)
    assert "2 of 5 ids are -1" in finding.observed
    assert (finding.severity, finding.verdict) == ("warning", "VALUES")
    (stray,) = failing("PCK_TOKEN_RANGE", what("token ids", "[5, -7, 129280]"))
    assert "2 of 3 ids are no tokens: -7, 129280" in stray.observed
    assert stray.severity == "error"
    assert [f.outcome for f in about("PCK_TOKEN_RANGE", what("input_ids", "[5, 129279]"))] == [
        "pass"
    ]
