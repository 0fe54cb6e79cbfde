"""engram_rows without an engine: which shards it serves, how rows become numbers, its figures."""

import json
import math
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sparkserve.adapters.engram_rows import Settings, cuda, lookup, stats
from sparkserve.adapters.engram_rows.shards import RankShards, warn_without_manifest
from sparkserve.engram import multipliers
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.engram.header import HEADER_BYTES
from sparkserve.engram.manifest import bounds_sha256, write_manifest
from sparkserve.engram.shard import write_shard
from sparkserve.errors import EngineRefused, ShardError
from sparkserve.model.engine_spec import EngineSpec, EngramSpec, GuardSpec
from sparkserve.model.engram_manifest import EngramManifest, ManifestLayer

WIDTH = 66
# Two layers of six columns: the primes from 5 up, none used twice.
FIELDS = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [
        5 + 7 + 11 + 13 + 17 + 19,
        23 + 29 + 31 + 37 + 41 + 43,
    ],
    "engram_max_ngram_size": 3,
    "engram_n_heads": 3,
    "engram_head_dim": 64,
    "engram_vocab_size": 5,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 40,
}


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    return EngineSpec(
        run_id="r1",
        profile="p",
        profile_digest="0" * 64,
        node="n0",
        rank=0,
        world_size=1,
        run_dir=str(tmp_path / "run"),
        root=str(tmp_path),
        argv=("python", "-m", "engine", "--model-path", str(tmp_path)),
        env={},
        port=1,
        engram=EngramSpec(directory=str(tmp_path)),
        guard=GuardSpec(port=1, head_address="127.0.0.1"),
    )


def of_rank(spec, rank, tp, layout="columns"):
    engram = EngramSpec(directory=spec.engram.directory, layout=layout)
    return spec.model_copy(update={"rank": rank, "world_size": tp, "engram": engram})


def put_shards(spec):
    config = EngramConfig.from_config(FIELDS)
    paths = []
    for layer in config.layer_ids:
        identity = config.shard(layer, spec.engram.layout, spec.rank, spec.world_size)
        path = Path(spec.engram.directory) / identity.file_name
        write_shard(path, identity.header, [bytes(WIDTH * identity.header.rows_in_file)])
        paths.append(path)
    return paths


def check(spec, **settings):
    return RankShards.of(spec, Settings(**settings)).check()


class TestShards:
    @pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
    def test_what_was_packed_for_this_rank_is_served(self, spec, layout):
        mine = of_rank(spec, 1, 3, layout)
        put_shards(mine)
        assert check(mine) is None

    def test_a_missing_shard_is_named(self, spec):
        _, second = put_shards(spec)
        second.unlink()
        with pytest.raises(ShardError, match=r"engram-l14-r0of1\.bin: cannot be read: No such"):
            check(spec)

    def test_a_truncated_shard_names_the_byte_where_it_ends(self, spec):
        first, _ = put_shards(spec)
        with first.open("r+b") as file:
            file.truncate(HEADER_BYTES + 100)
        with pytest.raises(ShardError, match=r"engram-l1-r0of1\.bin at byte 4196: file ends here"):
            check(spec)

    def test_a_foreign_file_is_found_by_its_magic(self, spec):
        first, _ = put_shards(spec)
        with first.open("r+b") as file:
            file.write(bytes(8))
        with pytest.raises(ShardError, match="at byte 0: magic 0x0"):
            check(spec)

    def test_another_layout_of_the_same_name_is_told_by_its_rows(self, spec):
        put_shards(of_rank(spec, 1, 2, "equal"))
        # 72 rows: the equal split begins at 36, the columns 5 + 7 + 11 end at 23.
        with pytest.raises(
            ShardError, match=r"row_start is 36, but layout columns gives rank 1 of"
        ):
            check(of_rank(spec, 1, 2, "columns"))

    def test_another_ranks_file_under_this_ranks_name_is_refused(self, spec):
        for other, mine in zip(
            put_shards(of_rank(spec, 0, 2)), put_shards(of_rank(spec, 1, 2)), strict=True
        ):
            other.replace(mine)
        with pytest.raises(ShardError, match=r"r1of2\.bin at byte 16: row_start is 0, but"):
            check(of_rank(spec, 1, 2))

    def test_strided_shards_of_another_rank_contradict_their_name(self, spec):
        for other, mine in zip(
            put_shards(of_rank(spec, 0, 2, "strided")),
            put_shards(of_rank(spec, 1, 2, "strided")),
            strict=True,
        ):
            other.replace(mine)
        with pytest.raises(ShardError, match="header says rank 0, the name says rank 1"):
            check(of_rank(spec, 1, 2, "strided"))

    def test_a_model_without_tables_is_refused(self, spec, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(EngineRefused, match=r"config\.json: .*names no engram_layer_ids"):
            check(spec)

    def test_a_numpy_that_hashes_the_released_model_otherwise_is_refused(
        self, spec, tmp_path, monkeypatch
    ):
        released = {f"engram_{name}": value for name, value in DEEPSEEK_V41_FLASH}
        (tmp_path / "config.json").write_text(json.dumps(released))
        RankShards.of(spec, Settings())
        monkeypatch.setattr(multipliers, "_SEED_STEP", 10008)
        with pytest.raises(
            EngineRefused, match=r"numpy .* draws the Engram multipliers .* layer 1"
        ):
            RankShards.of(spec, Settings())

    def test_a_model_that_is_not_there_is_refused(self, spec):
        elsewhere = spec.model_copy(update={"argv": ("python", "--model-path=/nowhere")})
        with pytest.raises(EngineRefused, match=r"/nowhere/config\.json: cannot be read: No such"):
            check(elsewhere)

    def test_without_an_engram_folder_it_is_refused(self, spec):
        with pytest.raises(EngineRefused, match="names no Engram directory"):
            check(spec.model_copy(update={"engram": None}))

    def test_without_a_manifest_it_warns_or_refuses_as_told(self, spec, caplog):
        put_shards(spec)
        shards = RankShards.of(spec, Settings())
        assert shards.check() is None
        warn_without_manifest(shards)
        assert "has no manifest" in caplog.text
        with pytest.raises(ShardError, match=r"manifest-r0of1\.json: there is no manifest"):
            check(spec, manifest="required")


def put_manifest(spec, **changes):
    """A manifest as packing these shards would leave it, with changes."""
    config = EngramConfig.from_config(FIELDS)
    layers = []
    for layer in config.layer_ids:
        identity = config.shard(layer, spec.engram.layout, spec.rank, spec.world_size)
        path = Path(spec.engram.directory) / identity.file_name
        layers.append(
            ManifestLayer(
                layer=layer,
                row_start=identity.ranges[0].start,
                row_end=identity.ranges[-1].end,
                ranges=identity.ranges,
                total_rows=identity.total_rows,
                row_bytes=WIDTH,
                bounds_sha256=bounds_sha256(identity.bounds),
                packed_file=path.name,
                bytes=path.stat().st_size,
                allocated_bytes=path.stat().st_blocks * 512,
                sha256="0" * 64,
                checksum_span_bytes=1 << 20,
                checksums=("0" * 16,),
                verified="none",
                sampled_rows=0,
                sample_seed=0,
                source_shard="model.safetensors",
                source_bytes=1,
                source_header_sha256="0" * 64,
                source_weight_offset=0,
                source_scale_offset=0,
            )
        )
    folder = Path(spec.engram.directory)
    manifest = EngramManifest(
        tool_version="0.1.0",
        rank=spec.rank,
        tp=spec.world_size,
        layout=spec.engram.layout,
        revision=None,
        checkpoint_config_sha256=sha256((folder / "config.json").read_bytes()).hexdigest(),
        checkpoint_index_sha256=None,
        layers=tuple(layers),
    )
    write_manifest(folder, manifest.model_copy(update=changes))
    return manifest


class TestManifest:
    def test_shards_that_their_manifest_describes_are_served(self, spec):
        put_shards(spec)
        manifest = put_manifest(spec)
        assert check(spec, manifest="required") == manifest

    def test_another_checkpoint_is_stale(self, spec):
        put_shards(spec)
        put_manifest(spec, checkpoint_config_sha256="1" * 64)
        with pytest.raises(
            ShardError, match=r"manifest-r0of1\.json: .*not fit: config\.json: 1111"
        ):
            check(spec)

    def test_an_index_that_the_packer_did_not_see_is_stale(self, spec, tmp_path):
        put_shards(spec)
        put_manifest(spec)
        (tmp_path / "model.safetensors.index.json").write_text("{}")
        with pytest.raises(ShardError, match=r"not fit: index: None, expected 44136fa355b3"):
            check(spec)

    def test_another_size_is_stale(self, spec):
        put_shards(spec)
        manifest = put_manifest(spec)
        grown = manifest.layers[1].model_copy(update={"bytes": manifest.layers[1].bytes + WIDTH})
        put_manifest(spec, layers=(manifest.layers[0], grown))
        with pytest.raises(ShardError, match=r"manifest-r0of1\.json: not a manifest|not fit"):
            check(spec)

    def test_a_manifest_of_the_other_contiguous_layout_is_stale(self, spec):
        put_shards(spec)
        put_manifest(spec, layout="equal")
        with pytest.raises(ShardError, match="not fit: layout: equal, expected columns"):
            check(spec)


class TestColumns:
    @pytest.mark.parametrize(
        ("rank", "tp", "layout", "wanted"),
        [
            (0, 1, "columns", None),
            (1, 2, "columns", slice(3, 6, 1)),
            (1, 3, "strided", slice(1, 5, 3)),
            (5, 6, "strided", slice(5, 6, 1)),
            (7, 8, "strided", slice(0, 0)),
            (0, 2, "equal", None),
            (0, 4, "columns", None),
        ],
    )
    def test_only_whole_columns_are_sliced_out(self, spec, rank, tp, layout, wanted):
        mine = of_rank(spec, rank, tp, layout)
        put_shards(mine)
        layer = RankShards.of(mine, Settings()).open(1)
        with layer.store:
            assert layer.owned == wanted
            assert layer.columns == 6

    @pytest.mark.parametrize("columns", [slice(2, 4, 1), slice(1, 6, 3), slice(0, 0)])
    def test_the_gathers_order_puts_every_staged_row_into_its_place(self, columns):
        """What the CUDA kernel does with ids -1 .. rows - 1, done by hand."""
        ids = torch.arange(5 * 6).view(5, 6)
        staged = ids[:, columns].reshape(-1)
        placed = [
            int(staged[row]) if row >= 0 else -1
            for row in cuda._order_of(8, 6, columns)[: ids.numel()].tolist()
        ]
        wanted = torch.full_like(ids, -1)
        wanted[:, columns] = ids[:, columns]
        assert placed == wanted.view(-1).tolist()

    def test_without_columns_the_order_is_the_ids_own(self):
        assert cuda._order_of(4, 1, None).tolist() == [0, 1, 2, 3]

    def test_ids_in_another_shape_are_all_looked_up(self):
        layer = SimpleNamespace(columns=6, owned=slice(0, 3, 1))
        assert lookup.chosen_columns(layer, torch.zeros(2, 6)) == slice(0, 3, 1)
        assert lookup.chosen_columns(layer, torch.zeros(2, 5)) is None
        assert lookup.chosen_columns(layer, torch.zeros(6)) is None


def test_every_pair_of_bytes_is_dequantised_by_the_formats_definitions():
    def e4m3(byte):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        size = math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
        return -size if byte & 0x80 else size

    weights = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).repeat_interleave(8).view(256, 8)
    found = lookup.dequantise(weights, scales).tolist()
    for scale in range(255):
        for byte in range(256):
            value = found[scale][byte]
            if byte & 0x7F == 0x7F:
                assert math.isnan(value)
                continue
            exact = e4m3(byte) * math.ldexp(1, scale - 127)
            # Four significant bits: a bf16 holds the product, where its range does.
            if 2**-126 <= abs(exact) < 2**128:
                assert value == exact
            assert math.copysign(1, value) == math.copysign(1, exact)
    assert all(math.isnan(value) for value in found[255])


def figures(layer, **more):
    return {"layer": layer, "lookups": 0, "ids": 0, "rows_read": 0} | more


class TestStats:
    def test_the_file_holds_every_layer(self, tmp_path):
        kept = stats.StatsFile(str(tmp_path), 3, 1.0)
        kept.add(lambda: figures(1, rows_read=40))
        kept.add(lambda: figures(14, rows_read=7))
        kept.close()
        (file,) = (tmp_path / "stats").iterdir()
        written = json.loads(file.read_text())
        assert written["rank"] == 3
        assert written["layers"] == [figures(1, rows_read=40), figures(14, rows_read=7)]

    def test_a_disk_that_refuses_costs_a_warning_and_no_more(self, tmp_path, caplog):
        (tmp_path / "stats").write_text("a file where the folder should be")
        kept = stats.StatsFile(str(tmp_path), 0, 1.0)
        kept.add(lambda: figures(1))
        deadline = time.monotonic() + 20
        while "cannot be written" not in caplog.text:
            assert time.monotonic() < deadline, "no warning"
            time.sleep(0.01)
        (tmp_path / "stats").unlink()
        kept.close()
        assert (tmp_path / "stats").is_dir()

    def test_nothing_is_written_while_nothing_changes(self, tmp_path):
        kept = stats.StatsFile(str(tmp_path), 0, 1.0)
        counted = figures(1)
        kept.add(lambda: counted)
        kept.close()
        (file,) = (tmp_path / "stats").iterdir()
        file.unlink()
        kept.write()
        assert not file.exists()
        counted["ids"] = 1
        kept.write()
        assert file.exists()
