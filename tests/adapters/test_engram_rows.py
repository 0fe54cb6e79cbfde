"""engram_rows without an engine: reader, counters, and the class over a stand-in base."""

import json
import math
import random
import struct
import time
from pathlib import Path

import pytest
import torch

from sparkserve.adapters.engram_rows import Settings, install, stats
from sparkserve.adapters.engram_rows.reader import FileRowReader
from sparkserve.engram.shard import HEADER_BYTES, ShardHeader, ShardName, write_shard
from sparkserve.errors import EngineRefused, ShardError
from sparkserve.model.engine_spec import EngineSpec, EngramSpec, GuardSpec

DIM = 64
WIDTH = 66
BOUNDS = (0, 5, 12, 23, 36)
TOTAL = 36


def table(seed=0):
    """Random rows over all byte values but the scales' extremes and NaN (e4m3 0x7f, 0xff)."""
    source = random.Random(seed)
    weights = [b for b in range(256) if b & 0x7F != 0x7F]
    return [
        bytes([source.choice(weights) for _ in range(DIM)] + [source.randrange(100, 150)] * 2)
        for _ in range(TOTAL)
    ]


def decode(row):
    """An e4m3 row with e8m0 scales by the formats' definitions, in double precision."""

    def e4m3(byte):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        size = math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
        return -size if byte & 0x80 else size

    return [
        e4m3(byte) * math.ldexp(1, row[DIM + i // 32] - 127) for i, byte in enumerate(row[:DIM])
    ]


@pytest.fixture
def spec(tmp_path):
    return EngineSpec(
        run_id="r1",
        profile="p",
        profile_digest="0" * 64,
        node="n0",
        rank=0,
        world_size=1,
        run_dir=str(tmp_path / "run"),
        root=str(tmp_path),
        argv=("python",),
        env={},
        port=1,
        engram=EngramSpec(directory=str(tmp_path)),
        guard=GuardSpec(port=1, head_address="127.0.0.1"),
    )


def put_shard(spec, start, end, *, layer=1, total=TOTAL):
    name = ShardName(layer, spec.rank, spec.world_size)
    path = Path(spec.engram.directory) / name.file_name
    write_shard(path, ShardHeader(layer, start, end, total, WIDTH), table()[start:end])
    return path


def wait_until(condition, deadline_s=20):
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


class Base(torch.nn.Module):
    """The engine's class as far as the lookup goes; its constructor must never run."""

    def __init__(self, *args, **kwargs):
        raise AssertionError("allocates the table")

    def forward(self, indices):
        return self._owned_rows(indices)


def build(spec, monkeypatch, *, bounds=BOUNDS, total=TOTAL, place=None):
    monkeypatch.setattr(install, "_parallel", lambda: place or (spec.rank, spec.world_size))
    made = install.embedding_class(Base, spec, Settings())
    named = {} if bounds is None else {"column_bounds": bounds}
    return made(total, DIM, 1, **named)


class TestReader:
    @pytest.fixture
    def reader(self, spec):
        reader = FileRowReader(put_shard(spec, 0, TOTAL))
        yield reader
        reader.close()

    @pytest.mark.parametrize(
        "rows",
        [[], [0], [TOTAL - 1], [3, 3, 3], [5, 4, 3, 9, 4], list(range(TOTAL)), [35, 0, 17, 35]],
    )
    def test_rows_arrive_in_the_order_asked_for(self, reader, rows):
        out = bytearray(len(rows) * WIDTH)
        assert reader.read(rows, out) == len(set(rows))
        assert bytes(out) == b"".join(table()[row] for row in rows)

    @pytest.mark.parametrize("rows", [[-1], [TOTAL], [0, 1 << 40]])
    def test_rows_outside_the_shard_are_errors(self, reader, rows):
        with pytest.raises(ShardError, match=f"row {rows[-1]} asked for, the shard holds 36"):
            reader.read(rows, bytearray(len(rows) * WIDTH))

    def test_a_shard_cut_while_it_is_open_is_an_error_at_that_byte(self, spec):
        path = put_shard(spec, 0, TOTAL)
        reader = FileRowReader(path)
        with path.open("r+b") as file:
            file.truncate(HEADER_BYTES + 2 * WIDTH + 10)
        with pytest.raises(ShardError, match=r"at byte 4238: file ends here, 56 bytes"):
            reader.read([2], bytearray(WIDTH))
        reader.close()


class TestEmbedding:
    def test_every_row_is_decoded_to_the_nearest_bf16(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL)
        out = build(spec, monkeypatch)(torch.arange(TOTAL))
        assert out.dtype == torch.bfloat16
        for row in range(TOTAL):
            for found, exact in zip(out[row].tolist(), decode(table()[row]), strict=True):
                # e4m3 has 4 significant bits: a bf16 holds the product exactly.
                assert found == exact
                assert math.copysign(1, found) == math.copysign(1, exact)

    @pytest.mark.parametrize("shape", [(0,), (1,), (3, 4), (2, 0, 4)])
    def test_any_shape_keeps_its_shape(self, spec, monkeypatch, shape):
        put_shard(spec, 0, TOTAL)
        ids = torch.arange(math.prod(shape)).reshape(shape) % TOTAL
        assert build(spec, monkeypatch)(ids).shape == (*shape, DIM)

    def test_rows_of_other_ranks_are_zero(self, spec, monkeypatch):
        second = spec.model_copy(update={"rank": 1, "world_size": 2})
        put_shard(second, 12, TOTAL)
        embedding = build(second, monkeypatch)
        whole = torch.tensor([decode(row) for row in table()]).to(torch.bfloat16)
        out = embedding(torch.arange(TOTAL))
        assert torch.equal(out[12:], whole[12:])
        assert not out[:12].any()

    def test_both_constructors_of_the_engine_fit(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL)
        with_bounds = build(spec, monkeypatch, bounds=BOUNDS)
        # A process holds one such class; two need a run directory each.
        elsewhere = spec.model_copy(update={"run_dir": f"{spec.run_dir}-2"})
        without = build(elsewhere, monkeypatch, bounds=None)
        ids = torch.tensor([[0, 35], [7, 7]])
        assert torch.equal(with_bounds(ids), without(ids))

    def test_the_checkpoint_is_compared_by_shape_and_not_kept(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL)
        embedding = build(spec, monkeypatch)
        for parameter, width in ((embedding.weight, DIM), (embedding.scale, DIM // 32)):
            parameter.weight_loader(parameter, torch.empty(TOTAL, width))
            assert parameter.numel() == 0
            with pytest.raises(EngineRefused, match=rf"shape \(35, {width}\), expected \(36"):
                parameter.weight_loader(parameter, torch.empty(TOTAL - 1, width))

    def test_counters_tell_ids_from_rows_read(self, spec, monkeypatch, tmp_path):
        put_shard(spec, 0, TOTAL)
        embedding = build(spec, monkeypatch)
        embedding(torch.tensor([[1, 1, 2], [3, 1, 2]]))
        embedding(torch.empty(0, dtype=torch.int64))
        counters = embedding._counters
        assert (counters.lookups, counters.ids, counters.rows_read) == (1, 6, 3)


class TestRefusals:
    def test_another_range_names_both(self, spec, monkeypatch):
        second = spec.model_copy(update={"rank": 1, "world_size": 2})
        put_shard(second, 18, TOTAL)
        with pytest.raises(EngineRefused, match=r"holds rows 18 to 36.*columns.*rows 12 to 36"):
            build(second, monkeypatch)
        equal = EngramSpec(directory=second.engram.directory, layout="equal")
        build(second.model_copy(update={"engram": equal}), monkeypatch)

    def test_an_engine_without_column_bounds_takes_equal_shards_only(self, spec, monkeypatch):
        second = spec.model_copy(update={"rank": 1, "world_size": 2})
        put_shard(second, 12, TOTAL)
        with pytest.raises(EngineRefused, match="names no column bounds"):
            build(second, monkeypatch, bounds=None)

    def test_a_table_of_another_size_is_refused(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL, total=TOTAL)
        with pytest.raises(EngineRefused, match="another table: 36 rows of 66 bytes, expected 37"):
            build(spec, monkeypatch, bounds=(0, 37), total=37)

    def test_columns_that_do_not_end_with_the_table_are_refused(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL)
        with pytest.raises(EngineRefused, match="columns end at row 35, the table has 36"):
            build(spec, monkeypatch, bounds=(0, 35))

    def test_a_missing_shard_is_refused_at_construction(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL, layer=2)
        with pytest.raises(EngineRefused, match=r"engram-l1-r0of1\.bin: cannot be read"):
            build(spec, monkeypatch)

    def test_a_rank_that_the_engine_counts_differently_is_refused(self, spec, monkeypatch):
        put_shard(spec, 0, TOTAL)
        with pytest.raises(EngineRefused, match="rank 0 of 2, the EngineSpec says 0 of 1"):
            build(spec, monkeypatch, place=(0, 2))

    def test_a_folder_without_this_ranks_shards_is_refused(self, spec):
        put_shard(spec, 0, TOTAL)
        other = spec.model_copy(update={"rank": 1, "world_size": 4})
        with pytest.raises(ShardError, match=r"no shard of this rank, expected engram-l\*-r1of4"):
            install.check_shards(other)
        assert [path.name for path in install.check_shards(spec)] == ["engram-l1-r0of1.bin"]

    def test_a_damaged_header_is_found_before_anything_is_installed(self, spec):
        path = put_shard(spec, 0, TOTAL)
        with path.open("r+b") as file:
            file.write(struct.pack("<Q", 0))
        with pytest.raises(ShardError, match="at byte 0: magic"):
            install.check_shards(spec)


class TestStats:
    def test_the_file_holds_every_layer(self, tmp_path):
        kept = stats.StatsFile(str(tmp_path), 3, 1.0)
        first, second = kept.layer(1), kept.layer(14)
        first.lookups, first.ids, first.rows_read = 2, 48, 40
        second.rows_read = 7
        kept.close()
        (file,) = (tmp_path / "stats").iterdir()
        written = json.loads(file.read_text())
        assert written["rank"] == 3
        assert written["layers"] == [
            {"layer": 1, "lookups": 2, "ids": 48, "rows_read": 40},
            {"layer": 14, "lookups": 0, "ids": 0, "rows_read": 7},
        ]

    def test_a_disk_that_refuses_costs_a_warning_and_no_more(self, tmp_path, caplog):
        (tmp_path / "stats").write_text("a file where the folder should be")
        kept = stats.StatsFile(str(tmp_path), 0, 1.0)
        kept.layer(1)
        wait_until(lambda: "cannot be written" in caplog.text)
        (tmp_path / "stats").unlink()
        kept.close()
        assert (tmp_path / "stats").is_dir()

    def test_nothing_is_written_while_nothing_changes(self, tmp_path):
        kept = stats.StatsFile(str(tmp_path), 0, 1.0)
        counters = kept.layer(1)
        kept.close()
        (file,) = (tmp_path / "stats").iterdir()
        file.unlink()
        kept.write()
        assert not file.exists()
        counters.ids = 1
        kept.write()
        assert file.exists()
