"""The benchmark's own parts; its figures are for docs/measurements, not for tests."""

import ctypes
import json
import shutil
from array import array
from collections import Counter

import pytest
from sparkserve_native import _bench_data as data
from sparkserve_native import _bench_runs as runs
from sparkserve_native import bench

from tests.native.tables import ROW_BYTES

TINY = bench.Plan(repetitions=1, fio_s=0.2, cold_ids=24_576, trace_batches=20, hit_rounds=1)


def test_a_share_of_each_batch_becomes_duplicates_of_that_batch():
    ids = array("q", range(3000))
    doubled = data.with_duplicates(ids, 1000, share=0.3, seed=1)
    for begin in (0, 1000, 2000):
        part = doubled[begin : begin + 1000]
        assert len(set(part)) == 700
        assert set(part) <= set(range(begin, begin + 1000))


def test_the_trace_repeats_and_follows_zipf():
    rows = 1_000_000
    ids = data.serving_trace(rows, 700, 144, seed=1)
    assert len(ids) == 700 * 144
    assert 0 <= min(ids) <= max(ids) < rows
    window = 8 * 144
    repeats = sum(ids[at] in set(ids[at - window : at]) for at in range(window, window + 2000))
    # 30 % on purpose, and what Zipf's head repeats by itself.
    assert 0.3 < repeats / 2000 < 0.7
    # Ranks 1..10 of 1/k over a million have ln(11)/ln(1e6) = 17 % of the draws.
    top = sum(count for _, count in Counter(ids).most_common(10)) / len(ids)
    assert 0.1 < top < 0.25


@pytest.mark.parametrize("cache_bytes", [0, 20_000, 4 << 20])
def test_the_pool_that_is_compared_with_gives_exact_rows(table, cache_bytes):
    library = runs._pool_library()
    pool = library.spnb_pool_open(
        table.file.path.encode(), table.file.data_offset_bytes, ROW_BYTES, 8, cache_bytes, 8
    )
    if not pool:
        pytest.skip("the temporary folder's file system does no direct I/O")
    try:
        for seed in range(6):
            ids = data.serving_trace(4099, 4, 144, seed=seed)
            rows = (ctypes.c_char * (len(ids) * ROW_BYTES))()
            assert library.spnb_pool_lookup(pool, ids.buffer_info()[0], len(ids), rows) == 0
            assert rows.raw == table.rows(ids)
        assert (library.spnb_pool_hits(pool) > 0) == (cache_bytes > 0)
    finally:
        library.spnb_pool_close(pool)


def test_the_file_is_made_once_and_is_whole(tmp_path):
    path = tmp_path / "rows.bin"
    file = data.row_file(path, 1 << 20)
    assert path.stat().st_size == file.data_offset_bytes + file.rows * ROW_BYTES <= 1 << 20
    made = path.stat().st_mtime_ns
    assert data.row_file(path, 1 << 20) == file
    assert path.stat().st_mtime_ns == made
    assert [item.name for item in tmp_path.iterdir()] == ["rows.bin"]


def test_every_figure_that_is_promised_is_there(tmp_path, monkeypatch, capsys):
    if shutil.which("fio") is None:
        pytest.skip("fio is missing")
    monkeypatch.setattr(bench, "QUICK", TINY)
    path = tmp_path / "rows.bin"
    arguments = ["--quick", "--path", str(path), "--size-gib", "0.02"]
    if bench.main([*arguments, "--json"]) != 0:
        pytest.skip(capsys.readouterr().err)
    report = json.loads(capsys.readouterr().out)
    assert set(report["ratios"]) == {
        "rows_vs_fio",
        "rows_vs_pread_pool",
        "cpu_vs_pread_pool",
        "trace_vs_pread_pool",
        "trace_vs_pread_pool_equal_cache",
        "trace_vs_pread_pool_no_caches",
        "duplicates_vs_unique",
    }
    assert all(value > 0 for value in report["ratios"].values())
    assert report["hits_rows_per_s_per_core"] > 0
    assert "rows_vs_fio" in bench.readable(report)


def test_a_missing_folder_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert bench.main(["--path", str(tmp_path / "gone" / "rows.bin")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
