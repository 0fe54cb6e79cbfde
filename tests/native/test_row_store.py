"""The row store through its Python face; its parts are tested in C++ (native/tests)."""

import ctypes
import errno
import os
import random
import threading
from array import array
from dataclasses import replace

import pytest
from sparkserve_native import RowStore, RowStoreError, Segment, StoreOptions

from tests.native.tables import ROW_BYTES, SCALE_BYTES, WEIGHT_BYTES, make_table

SEVENTEEN_SLOTS = 17 * (ROW_BYTES + 8)
ALL_ROWS = 2 * 4099 * (ROW_BYTES + 8)


@pytest.fixture(params=["io_uring", "pread"])
def engine(request, table):
    if request.param == "io_uring":
        try:
            RowStore(table.file, StoreOptions(engine="io_uring")).close()
        except RowStoreError as error:
            pytest.skip(str(error))
    return request.param


def some_ids(seed, total):
    """About 1007 ids: any, many twice, and 15..17, whose rows lie across pages."""
    rng = random.Random(seed)
    ids = [rng.randrange(total) for _ in range(1000 + seed % 15)]
    for _ in range(300):
        ids[rng.randrange(len(ids))] = rng.choice(ids)
    for item in (0, 15, 16, 17, 15, total - 1):
        ids[rng.randrange(len(ids))] = item
    return array("q", ids)


def looked_up(store, ids):
    out = bytearray(b"\xa5" * (len(ids) * ROW_BYTES))
    store.lookup_into(ids, out)
    return out


@pytest.mark.parametrize("cache_bytes", [0, SEVENTEEN_SLOTS, ALL_ROWS])
def test_four_callers_get_exact_rows(tmp_path, engine, cache_bytes):
    segments = (Segment(10, 1500, 2609), Segment(1500, 2000, 0), Segment(2100, 4200, 500))
    table = make_table(tmp_path / "four.bin", total_ids=5000, segments=segments)
    options = StoreOptions(engine=engine, cache_bytes=cache_bytes, threads=8)
    wrong = []

    def call(caller):
        for seed in range(12):
            ids = some_ids(seed * 4 + caller, 5000)
            if looked_up(store, ids) != table.rows(ids):
                wrong.append((caller, seed))

    with RowStore(table.file, options) as store:
        callers = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        stats = store.stats()
    assert wrong == []
    assert (stats.engine, stats.lookups, stats.failed_lookups) == (engine, 48, 0)
    assert stats.hits + stats.misses == stats.owned_ids < stats.ids
    assert stats.unique_ids < stats.misses
    assert stats.cache_bytes <= cache_bytes
    assert (stats.hits > 0) == (cache_bytes > 0)
    assert 0 < stats.p50_job_ns <= stats.p99_job_ns


def test_both_engines_count_the_same(table):
    counts = []
    for engine in ("auto", "pread"):
        with RowStore(
            table.file, StoreOptions(engine=engine, cache_bytes=SEVENTEEN_SLOTS)
        ) as store:
            for seed in range(5):
                looked_up(store, some_ids(seed, 4099))
            stats = store.stats()
        counts.append((stats.misses + stats.hits, stats.owned_ids, stats.lookups))
    assert counts[0] == counts[1]


def test_weights_and_scales_may_go_to_buffers_of_their_own(table):
    ids = some_ids(1, 4099)
    weights, scales = bytearray(len(ids) * WEIGHT_BYTES), bytearray(len(ids) * SCALE_BYTES)
    with RowStore(table.file) as store:
        store.lookup_into(ids, weights, scales)
    for place, item in enumerate(ids):
        row = weights[place * WEIGHT_BYTES :][:WEIGHT_BYTES]
        row += scales[place * SCALE_BYTES :][:SCALE_BYTES]
        assert row == table.row(item)


def test_ids_may_be_read_only_and_of_any_buffer(table):
    ids = some_ids(2, 4099)
    with RowStore(table.file) as store:
        for same in (bytes(ids), memoryview(ids), memoryview(ids).toreadonly()):
            assert looked_up_bytes(store, same, len(ids)) == table.rows(ids)


def looked_up_bytes(store, ids, count):
    out = bytearray(count * ROW_BYTES)
    store.lookup_into(ids, out)
    return out


def test_no_ids_are_no_work(table):
    with RowStore(table.file) as store:
        store.lookup_into(b"", bytearray())
        assert store.stats().reads == 0


@pytest.mark.parametrize(
    ("ids", "weights", "scales", "text"),
    [
        (bytes(12), bytearray(264), None, "multiple of 8"),
        (bytes(8), bytearray(263), None, "263 bytes, expected 264"),
        (bytes(8), bytearray(265), None, "265 bytes, expected 264"),
        (bytes(8), bytearray(256), bytearray(7), "7 bytes, expected 8"),
    ],
)
def test_buffers_of_another_length_are_refused(table, ids, weights, scales, text):
    with RowStore(table.file) as store, pytest.raises(ValueError, match=text):
        store.lookup_into(ids, weights, scales)


def test_a_read_only_output_is_refused(table):
    with RowStore(table.file) as store, pytest.raises(BufferError):
        store.lookup_into(bytes(8), bytes(264))


@pytest.mark.parametrize("wrong", [-1, 4099, 2**40, -(2**63), 2**63 - 1])
def test_an_id_outside_the_table_is_an_error_and_gives_zeros(table, engine, wrong):
    with RowStore(table.file, StoreOptions(engine=engine, cache_bytes=ALL_ROWS)) as store:
        ids = some_ids(3, 4099)
        looked_up(store, ids)
        good, ids[500] = ids[500], wrong
        out = bytearray(b"\xa5" * (len(ids) * ROW_BYTES))
        with pytest.raises(RowStoreError, match=f"id {wrong}, expected") as caught:
            store.lookup_into(ids, out)
        assert out == bytes(len(out))
        assert (caught.value.errno, caught.value.path) == (errno.ERANGE, table.file.path)
        assert caught.value.offset_bytes is None
        assert table.file.path in str(caught.value)
        ids[500] = good
        assert looked_up(store, ids) == table.rows(ids)


def test_a_missing_file_is_named(table):
    file = replace(table.file, path=f"{table.file.path}.gone")
    with pytest.raises(RowStoreError, match=r"gone: open: No such file") as caught:
        RowStore(file)
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, file.path)


def test_a_directory_and_a_pipe_are_refused(table, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, number in ((tmp_path, errno.EISDIR), (pipe, errno.EINVAL)):
        with pytest.raises(RowStoreError) as caught:
            RowStore(replace(table.file, path=str(path)))
        assert caught.value.errno == number


def test_a_file_too_short_for_its_rows_is_refused_at_its_end(table):
    os.truncate(table.file.path, 500_000)
    with pytest.raises(RowStoreError, match="at byte 500000: the file ends here") as caught:
        RowStore(table.file)
    assert (caught.value.errno, caught.value.offset_bytes) == (errno.ENODATA, 500_000)


def test_a_file_that_is_cut_while_it_is_open_is_an_error_from_then_on(table, engine):
    with RowStore(table.file, StoreOptions(engine=engine, cache_bytes=ALL_ROWS)) as store:
        looked_up(store, array("q", [1, 2]))
        # Row 4000 begins at byte 777 + 4000 * 264 = 1056777.
        os.truncate(table.file.path, 1_056_800)
        with pytest.raises(RowStoreError, match="at byte 1056800: no more bytes here") as caught:
            looked_up(store, array("q", [4000]))
        assert (caught.value.errno, caught.value.offset_bytes) == (errno.ENODATA, 1_056_800)
        for item in (1, 2, 4000):
            with pytest.raises(RowStoreError) as caught:
                looked_up(store, array("q", [item]))
            assert caught.value.path == table.file.path


def test_a_file_that_is_replaced_while_it_is_open_goes_on_with_its_own_rows(table, tmp_path):
    other = make_table(tmp_path / "other.bin", seed=2)
    with RowStore(table.file) as store:
        (tmp_path / "other.bin").rename(table.file.path)
        assert looked_up(store, array("q", [1])) == table.row(1)
    with RowStore(replace(other.file, path=table.file.path)) as store:
        assert looked_up(store, array("q", [1])) == other.row(1)


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        ((Segment(0, 4100, 0),), "ids 0..4100"),
        ((Segment(-1, 5, 0),), "ids -1..5"),
        ((Segment(5, 5, 0),), "ids 5..5"),
        ((Segment(0, 10, 0), Segment(9, 20, 10)), "ids 9..20"),
        ((Segment(0, 10, 4090),), "from row 4090, the file has 4099"),
    ],
)
def test_segments_that_contradict_the_file_are_refused(table, segments, text):
    with pytest.raises(RowStoreError, match=text) as caught:
        RowStore(replace(table.file, segments=segments))
    assert caught.value.errno == errno.EINVAL


def test_a_file_without_segments_owns_nothing(table):
    with RowStore(replace(table.file, segments=())) as store:
        assert looked_up(store, array("q", [0, 4098])) == bytes(2 * ROW_BYTES)
        assert store.stats().owned_ids == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (StoreOptions(cache_ways=0), "cache_ways 0, expected 1..16"),
        (StoreOptions(queue_depth=0), "queue_depth 0, expected 1..4096"),
        (StoreOptions(threads=5000), "threads 5000, expected 1..1024"),
        (StoreOptions(max_ids=0), "max_ids 0"),
    ],
)
def test_options_out_of_range_are_refused(table, options, text):
    with pytest.raises(RowStoreError, match=text):
        RowStore(table.file, options)


def test_a_number_that_no_field_holds_is_refused_and_not_cut(table):
    with pytest.raises(ValueError, match="cache_bytes -1"):
        RowStore(table.file, StoreOptions(cache_bytes=-1))
    with pytest.raises(ValueError, match="queue_depth 4294967296"):
        RowStore(table.file, StoreOptions(queue_depth=2**32))
    with pytest.raises(ValueError, match="null byte"):
        RowStore(replace(table.file, path="a\0b"))


def addresses(*buffers):
    return [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers]


def test_jobs_give_the_rows_of_ids_that_change_between_them(table):
    ids, weights, scales = array("q", [0] * 144), bytearray(144 * 256), bytearray(144 * 8)
    ids_at, weights_at, scales_at = addresses(ids, weights, scales)
    with RowStore(table.file, StoreOptions(cache_bytes=SEVENTEEN_SLOTS)) as store:
        job = store.job(ids_at, 144, weights_at, scales_at)
        address = job.address
        for turn, ways in enumerate([(store.run,), (store.submit, store.wait)] * 5):
            for place in range(144):
                ids[place] = random.Random(turn * 1000 + place).randrange(4099)
            for step in ways:
                step(job)
            wanted = [table.row(item) for item in ids]
            assert weights == b"".join(row[:256] for row in wanted)
            assert scales == b"".join(row[256:] for row in wanted)
        assert job.address == address


def test_a_job_of_another_store_is_refused(table):
    ids, rows = array("q", [7]), bytearray(ROW_BYTES)
    with RowStore(table.file) as store, RowStore(table.file) as other:
        job = store.job(*addresses(ids), 1, *addresses(rows), 0)
        for step in (other.run, other.submit, other.wait):
            with pytest.raises(ValueError, match="a job of the store of"):
                step(job)
        store.run(job)
    assert rows == table.row(7)


def test_a_job_is_submitted_once_and_waited_for_once(table):
    ids, rows = array("q", [7]), bytearray(ROW_BYTES)
    with RowStore(table.file) as store:
        job = store.job(*addresses(ids), 1, *addresses(rows), 0)
        with pytest.raises(RowStoreError, match="not submitted"):
            store.wait(job)
        store.submit(job)
        with pytest.raises(RowStoreError, match="under way"):
            store.submit(job)
        store.wait(job)
        assert rows == table.row(7)


def test_a_closed_store_refuses(table):
    ids, rows = array("q", [7]), bytearray(ROW_BYTES)
    store = RowStore(table.file)
    job = store.job(*addresses(ids), 1, *addresses(rows), 0)
    store.submit(job)
    store.close()
    assert rows == table.row(7)
    store.close()
    for use in (lambda: store.run(job), store.stats, lambda: looked_up(store, ids)):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert not job.struct.store


def test_closing_waits_for_the_lookups_of_other_threads(table):
    for _ in range(20):
        store = RowStore(table.file, StoreOptions(threads=2))
        started, wrong = threading.Event(), []

        def call(store=store, started=started, wrong=wrong):
            ids = some_ids(4, 4099)
            try:
                while True:
                    if looked_up(store, ids) != table.rows(ids):
                        wrong.append(1)
                    started.set()
            except ValueError:
                return

        thread = threading.Thread(target=call)
        thread.start()
        started.wait()
        store.close()
        thread.join()
        assert wrong == []
