"""The adapters over SGLang's own classes, in one process: run by test_engram_modules.py.

Not collected by name: importing SGLang takes its time and changes the interpreter, so each engine
release gets a process of its own.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers import engram
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import context as breakable
from sparkserve_native import RowStoreError

from sparkserve.adapters.engram_prefetch import BOUND, HASH
from sparkserve.adapters.engram_prefetch import Settings as PrefetchSettings
from sparkserve.adapters.engram_prefetch import install as prefetch
from sparkserve.adapters.engram_rows import Settings, embedding
from sparkserve.adapters.engram_rows import install as rows_install
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.header import HEADER_BYTES
from sparkserve.engram.shard import write_shard
from sparkserve.errors import EngineRefused, ShardError
from sparkserve.model.engine_spec import AdapterSpec, EngineSpec, EngramSpec, GuardSpec

DIM = 64
WIDTH = 66
TOKENS = 40
FIELDS = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 3,
    "engram_n_heads": 4,
    "engram_head_dim": DIM,
    "engram_vocab_size": 30,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": TOKENS,
    # Eight columns a layer from the primes at and above 30, none used twice.
    "engram_num_embeddings": [
        31 + 37 + 41 + 43 + 47 + 53 + 59 + 61,
        67 + 71 + 73 + 79 + 83 + 89 + 97 + 101,
    ],
}
CONFIG = EngramConfig.from_config(FIELDS)
LAYOUT = engram.EngramLayout.from_config(SimpleNamespace(**FIELDS))


def table(layer):
    """Rows of every byte value but NaN, zeros of both signs among them."""
    source = random.Random(layer)
    weights = [byte for byte in range(256) if byte & 0x7F != 0x7F] + [0x80] * 64
    return [
        bytes(source.choice(weights) for _ in range(DIM))
        + bytes(source.randrange(256) for _ in range(2))
        for _ in range(CONFIG.bounds(layer)[-1])
    ]


TABLES = {layer: table(layer) for layer in CONFIG.layer_ids}


@pytest.fixture
def place(monkeypatch):
    """Say which rank of how many this process is."""

    def set_place(rank, tp, **more):
        parallel = SimpleNamespace(
            tp_rank=rank, tp_size=tp, **({"attn_dp_size": 1, "attn_cp_size": 1} | more)
        )
        for target in ("sglang.srt.runtime_context", "sglang.srt.layers.engram"):
            monkeypatch.setattr(f"{target}.get_parallel", lambda: parallel)

    set_place(0, 1)
    return set_place


@dataclass
class Ranks:
    """Packs shards and makes embeddings, as the plugin does in each rank's process."""

    folder: Path
    place: object

    def __post_init__(self):
        (self.folder / "config.json").write_text(json.dumps(FIELDS))
        self.made = 0

    def spec(self, rank=0, tp=1, layout="columns", adapters=()):
        self.made += 1
        return EngineSpec(
            run_id="r1",
            profile="p",
            profile_digest="0" * 64,
            node="n0",
            rank=rank,
            world_size=tp,
            run_dir=str(self.folder / f"run{self.made}"),
            root=str(self.folder),
            argv=("python", "--model-path", str(self.folder)),
            env={},
            port=1,
            engram=EngramSpec(directory=str(self.folder), layout=layout),
            adapters=tuple(AdapterSpec(name=name) for name in adapters),
            guard=GuardSpec(port=1, head_address="127.0.0.1"),
        )

    def pack(self, rank=0, tp=1, layout="columns"):
        for layer in CONFIG.layer_ids:
            identity = CONFIG.shard(layer, layout, rank, tp)
            rows = [row for span in identity.ranges for row in TABLES[layer][span.start : span.end]]
            write_shard(self.folder / identity.file_name, identity.header, rows)

    def embedding(self, layer=1, rank=0, tp=1, layout="columns", **settings):
        self.pack(rank, tp, layout)
        self.place(rank, tp)
        (patch,) = rows_install.install(self.spec(rank, tp, layout), Settings(**settings))
        return make(patch.value, layer)


@pytest.fixture
def ranks(tmp_path, place):
    return Ranks(tmp_path, place)


def make(kind, layer):
    index = CONFIG.layer_ids.index(layer)
    named = {"column_bounds": CONFIG.bounds(layer)} if hasattr(LAYOUT, "column_bounds") else {}
    return kind(LAYOUT.num_embeddings[index], DIM, layer, **named)


def in_memory(layer):
    """SGLang's own embedding with the same table, of one rank."""
    made = make(engram.EngramEmbedding, layer)
    raw = torch.frombuffer(bytearray(b"".join(TABLES[layer])), dtype=torch.uint8).view(-1, WIDTH)
    weights = raw[:, :DIM].contiguous().view(torch.float8_e4m3fn)
    scales = raw[:, DIM:].contiguous().view(torch.float8_e8m0fnu)
    made.weight.weight_loader(made.weight, weights)
    made.scale.weight_loader(made.scale, scales)
    return made


def some_ids(layer, tokens=23, seed=5):
    """[tokens, columns] ids, each in its column, neighbours and repetitions among them."""
    source = torch.Generator().manual_seed(seed)
    bounds = torch.tensor(CONFIG.bounds(layer))
    draws = torch.rand(tokens, len(bounds) - 1, generator=source)
    draws[1::5] = draws[::5][: len(draws[1::5])]
    return bounds[:-1] + (draws * bounds.diff()).long()


def same_bits(one, other):
    assert one.shape == other.shape
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


class TestRows:
    @pytest.mark.parametrize("engine", ["pread", "auto"])
    @pytest.mark.parametrize("cache_gib", [0, 2e-6, 1e-3])
    def test_one_rank_gives_the_engines_own_rows_bit_for_bit(self, ranks, engine, cache_gib):
        for layer in CONFIG.layer_ids:
            ours = ranks.embedding(layer, engine=engine, cache_gib=cache_gib)
            theirs = in_memory(layer)
            for seed in range(3):
                ids = some_ids(layer, seed=seed)
                assert same_bits(ours(ids), theirs(ids))
            assert (theirs(ids).view(torch.int16) == -0x8000).any(), "no -0 among the rows"

    @pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
    @pytest.mark.parametrize("tp", [2, 3, 4, 8])
    def test_the_sum_over_ranks_is_the_whole_table(self, ranks, layout, tp):
        ids = some_ids(14)
        parts = [ranks.embedding(14, r, tp, layout)._owned_rows(ids) for r in range(tp)]
        owners = sum((part != 0).any(-1).int() for part in parts)
        assert owners.max() == 1, "two ranks gave the same row"
        whole = in_memory_of_one(ranks, 14)(ids)
        # The sum turns -0 into +0, as the engine's own does.
        assert same_bits(sum(parts[1:], parts[0]), whole + 0.0)

    def test_a_rank_without_columns_gives_zeros(self, ranks):
        ids = some_ids(1)
        last = ranks.embedding(1, 9, 10, "strided")
        assert not last._owned_rows(ids).any()

    @pytest.mark.parametrize("layout", ["columns", "equal", "strided"])
    def test_ids_that_are_not_laid_out_by_column_are_served_too(self, ranks, layout):
        ids = some_ids(1).reshape(-1)[:77]
        parts = [ranks.embedding(1, r, 2, layout)._owned_rows(ids) for r in range(2)]
        assert same_bits(parts[0] + parts[1], in_memory_of_one(ranks, 1)(ids) + 0.0)

    @pytest.mark.parametrize("shape", [(0, 8), (1, 8), (2, 3, 8), (5,)])
    def test_any_shape_keeps_its_shape(self, ranks, shape):
        ids = torch.zeros(shape, dtype=torch.int64)
        assert ranks.embedding()(ids).shape == (*shape, DIM)

    def test_only_owned_columns_are_looked_up(self, ranks):
        ours = ranks.embedding(1, 1, 4, "strided")
        ours._owned_rows(some_ids(1, tokens=10))
        assert ours._layer.store.stats().ids == 10 * 8 // 4

    def test_rows_out_of_the_table_are_errors_and_no_zeros(self, ranks):
        ours = ranks.embedding()
        ids = some_ids(1)
        ids[3, 3] = CONFIG.bounds(1)[-1]
        with pytest.raises(ShardError, match=rf"engram-l1-r0of1\.bin.*{int(ids[3, 3])}"):
            ours(ids)

    def test_a_shard_cut_while_serving_is_an_error_that_names_it(self, ranks):
        ours = ranks.embedding()
        path = ranks.folder / "engram-l1-r0of1.bin"
        with path.open("r+b") as file:
            file.truncate(HEADER_BYTES + WIDTH)
        with pytest.raises(ShardError, match=r"engram-l1-r0of1\.bin"):
            ours(some_ids(1))

    def test_the_figures_tell_ids_from_rows_read(self, ranks):
        ours = ranks.embedding()
        first = CONFIG.bounds(1)[:-1]
        ours(torch.tensor([first, first]))
        figures = ours.figures()
        assert (figures["lookups"], figures["ids"], figures["rows_read"]) == (1, 16, 8)
        assert figures["hits"] + figures["misses"] == 16
        assert figures["engine"] in ("io_uring", "pread")
        assert figures["engine_reason"]


def in_memory_of_one(ranks, layer):
    ranks.place(0, 1)
    return in_memory(layer)


class TestRefusals:
    def test_an_engine_of_another_rank(self, ranks):
        ranks.pack()
        (patch,) = rows_install.install(ranks.spec(), Settings())
        ranks.place(0, 2)
        with pytest.raises(EngineRefused, match="rank 0 of 2, the EngineSpec says 0 of 1"):
            make(patch.value, 1)

    def test_an_engine_with_another_table(self, ranks):
        ranks.pack()
        (patch,) = rows_install.install(ranks.spec(), Settings())
        rows = CONFIG.bounds(1)[-1]
        with pytest.raises(EngineRefused, match=f"layer 1 has {rows + 1} rows of 64, config.json"):
            patch.value(rows + 1, DIM, 1)
        with pytest.raises(EngineRefused, match="columns of layer 1 end at other rows"):
            patch.value(rows, DIM, 1, column_bounds=(0, rows))

    def test_the_checkpoint_is_compared_by_shape_and_not_kept(self, ranks):
        ours = ranks.embedding()
        rows = CONFIG.bounds(1)[-1]
        for parameter, width in ((ours.weight, DIM), (ours.scale, DIM // 32)):
            parameter.weight_loader(parameter, torch.empty(rows, width))
            assert parameter.numel() == 0
            with pytest.raises(EngineRefused, match=rf"shape \({rows - 1}, {width}\), expected"):
                parameter.weight_loader(parameter, torch.empty(rows - 1, width))


class Model(torch.nn.Module):
    """What holds hasher and Engram layers in the engine's models, without what is between."""

    def __init__(self, kinds):
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for index, layer in enumerate(CONFIG.layer_ids):
            # Engram's own constructor makes its projection, which needs a whole engine.
            made = engram.Engram.__new__(engram.Engram)
            torch.nn.Module.__init__(made)
            made.layer_hash_index = index
            made.embed = make(kinds, layer)
            self.layers.append(made)
        self.hasher = engram.EngramHasher(LAYOUT, Tokenizer(), 2, TOKENS)
        self.hasher.init_history(8, "cpu")
        self.skip = ()

    def forward(self, input_ids, batch, change=lambda ids: ids):
        hash_ids = change(self.hasher(input_ids, batch))
        return [
            each.embed(hash_ids[:, each.layer_hash_index], batch)
            for place, each in enumerate(self.layers)
            if place not in self.skip
        ], hash_ids


class ModelByForward:
    """A model whose ``forward`` is called past ``__call__``."""

    def __init__(self, model):
        self.__dict__["model"] = model

    def __call__(self, *args, **named):
        return self.model.forward(*args, **named)

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __setattr__(self, name, value):
        setattr(self.model, name, value)


class Tokenizer:
    """Every token reads as something of its own."""

    backend_tokenizer = SimpleNamespace(
        decode=lambda ids, skip_special_tokens: f"t{ids[0]}", id_to_token=str
    )

    def __len__(self):
        return TOKENS


def decode_batch(tokens):
    slots = torch.arange(tokens)
    return SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        positions=slots + 7,
        req_pool_indices=slots,
        # The last token is padding of a graph.
        out_cache_loc=torch.tensor([*range(1, tokens), 0]),
    )


def extend_batch(tokens):
    """Two requests, of which the second is continued, and two tokens of padding."""
    lengths = torch.tensor([3, tokens - 5])
    return SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        positions=torch.cat([torch.arange(3), torch.arange(tokens - 5) + 4, torch.zeros(2)]).long(),
        req_pool_indices=torch.tensor([1, 4]),
        extend_seq_lens=lengths,
        extend_start_loc=torch.tensor([0, 3]),
        extend_seq_lens_cpu=lengths.tolist(),
        engram_history=torch.tensor([[0, 0], [5, 6]], dtype=torch.int32),
        out_cache_loc=torch.arange(tokens) + 1,
    )


def verify_batch(tokens):
    return SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY,
        spec_info=SimpleNamespace(draft_token_num=tokens // 2),
        positions=torch.arange(tokens) % (tokens // 2) + 9,
        req_pool_indices=torch.tensor([0, 3]),
        out_cache_loc=torch.arange(tokens) + 1,
    )


BATCHES = {"decode": decode_batch, "extend": extend_batch, "verify": verify_batch}


@dataclass
class Prefetching:
    """A model whose hash fetches ahead, and the same rows without."""

    model: Model
    prefetcher: object
    plain: dict

    def ahead(self):
        return [each.embed.ahead for each in self.model.layers]

    def counted(self, name):
        return [each.counters()[name] for each in self.ahead()]

    def run(self, batch, tokens=8, **named):
        source = torch.Generator().manual_seed(tokens)
        found, hash_ids = self.model(
            torch.randint(3, TOKENS, (tokens,), generator=source), batch, **named
        )
        assert all(each._pending is None for each in self.ahead()), "a fetch was left open"
        layers = [e for p, e in enumerate(self.model.layers) if p not in self.model.skip]
        for rows, each in zip(found, layers, strict=True):
            index = each.layer_hash_index
            assert same_bits(rows, self.plain[index](hash_ids[:, index]))


@pytest.fixture
def prefetching(ranks, monkeypatch):
    def build(**settings):
        ranks.pack()
        spec = ranks.spec(adapters=("engram_rows", "engram_prefetch"))
        plain = {index: in_memory(layer) for index, layer in enumerate(CONFIG.layer_ids)}
        (patch,) = rows_install.install(spec, Settings())
        model = Model(patch.value)
        wraps = prefetch.install(spec, PrefetchSettings(**settings))
        patches = {each.target: each.value for each in wraps}
        hash_before = engram.EngramHasher.forward
        monkeypatch.setattr(
            engram.EngramHasher,
            "forward",
            lambda self, ids, batch: patches[HASH](hash_before, self, ids, batch),
        )
        manager = SimpleNamespace(engram_hasher=model.hasher)
        assert patches[BOUND](lambda **_: manager, model=model) is manager
        return Prefetching(model, model.layers[0].embed.ahead._prefetcher, plain)

    return build


class TestPrefetch:
    @pytest.mark.parametrize("mode", BATCHES)
    def test_every_layer_is_served_from_what_was_fetched(self, prefetching, mode):
        ours = prefetching()
        for _ in range(3):
            ours.run(BATCHES[mode](8))
        assert ours.counted("prefetched") == [3, 3]
        assert ours.counted("prefetch_dropped") == [0, 0]
        # A row that was fetched is not read again.
        assert all(each.embed._layer.store.stats().lookups == 3 for each in ours.model.layers)

    def test_an_idle_batch_fetches_nothing(self, prefetching):
        ours = prefetching()
        batch = decode_batch(8)
        batch.forward_mode = ForwardMode.IDLE
        ours.prefetcher.begin = None
        empty = torch.zeros(0, dtype=torch.int64)
        assert [rows.shape[0] for rows in ours.model(empty, batch)[0]] == [0, 0]

    def test_rows_of_another_forward_are_never_used(self, prefetching):
        ours = prefetching()
        mine, other = decode_batch(8), decode_batch(8)
        ids = ours.model.hasher(torch.arange(8) + 3, mine)
        embed = ours.model.layers[0].embed
        assert same_bits(embed(ids[:, 0], other), ours.plain[0](ids[:, 0]))
        assert ours.counted("prefetched") == [0, 0]
        assert ours.counted("prefetch_dropped") == [1, 0]

    def test_a_forward_that_broke_off_leaves_nothing_to_the_next(self, prefetching):
        ours = prefetching()
        ours.model.hasher(torch.arange(8) + 3, decode_batch(8))
        ours.run(decode_batch(8))
        assert ours.counted("prefetched") == [1, 1]
        assert ours.counted("prefetch_dropped") == [1, 1]

    @pytest.mark.parametrize(
        "change",
        [lambda ids: ids.clone(), lambda ids: ids[2:], lambda ids: ids[[1, 0, *range(2, 8)]]],
        ids=["copied", "shortened", "reordered"],
    )
    def test_ids_that_are_not_the_hashed_ones_are_looked_up(self, prefetching, change):
        ours = prefetching()
        ours.run(decode_batch(8), change=change)
        assert ours.counted("prefetched") == [0, 0]
        assert ours.counted("prefetch_dropped") == [1, 1]

    @pytest.mark.parametrize("called", [True, False], ids=["called", "by its forward"])
    def test_a_skipped_layer_is_joined_when_the_pass_ends(self, prefetching, called):
        ours = prefetching()
        if not called:
            # As DeepSeek-V4 runs its layers.
            ours.model = ModelByForward(ours.model)
        ours.model.skip = (1,)
        ours.run(decode_batch(8))
        assert ours.counted("prefetched") == [1, 0]
        assert ours.counted("prefetch_dropped") == [0, 1]

    def test_a_segmented_prefill_graph_is_left_to_the_engines_own_path(
        self, prefetching, monkeypatch
    ):
        ours = prefetching()
        monkeypatch.setattr(breakable, "_in_breakable_cuda_graph", True)
        ours.run(extend_batch(8))
        assert ours.counted("prefetched") == ours.counted("prefetch_dropped") == [0, 0]

    def test_a_failing_start_turns_it_off_with_one_warning(self, prefetching, monkeypatch, caplog):
        ours = prefetching()
        store = ours.model.layers[1].embed._layer.store

        def fail(_):
            raise RowStoreError(5, "the disk is gone", "somewhere", None)

        monkeypatch.setattr(store, "submit", fail)
        for _ in range(3):
            ours.run(decode_batch(8))
        assert caplog.text.count("engram_prefetch is off from now on") == 1
        assert "the disk is gone" in caplog.text
        assert ours.counted("prefetch")[0].startswith("off: ShardError: ")

    def test_a_failing_wait_turns_it_off_and_the_own_path_serves(self, prefetching, monkeypatch):
        ours = prefetching()
        store = ours.model.layers[0].embed._layer.store
        wait = store.wait

        def fail(job):
            wait(job)
            raise RowStoreError(5, "the disk is gone", "somewhere", 4096)

        monkeypatch.setattr(store, "wait", fail)
        ours.run(decode_batch(8))
        ours.run(decode_batch(8))
        assert ours.counted("prefetched") == [0, 0]
        assert "the disk is gone" in ours.prefetcher.off

    def test_the_check_finds_no_row_that_differs(self, prefetching):
        ours = prefetching(check=True)
        for mode in BATCHES:
            ours.run(BATCHES[mode](8))
        assert ours.counted("checked_rows") == [3 * 8 * 8] * 2
        assert ours.counted("differing_rows") == [0, 0]

    def test_the_check_finds_a_row_that_differs(self, prefetching, monkeypatch, caplog):
        ours = prefetching(check=True)
        lookup = ours.model.layers[0].embed.lookup(torch.device("cpu"))
        now = lookup.now

        def flipped(ids):
            rows = now(ids)
            rows[2, 5] = rows[2, 5].neg()
            return rows

        monkeypatch.setattr(lookup, "now", flipped)
        ours.run(decode_batch(8))
        assert ours.counted("differing_rows") == [1, 0]
        assert "1 of 64 rows of layer 0 differ" in caplog.text

    def test_a_copied_batch_is_another_forward(self, prefetching):
        ours = prefetching()
        batch = decode_batch(8)
        ids = ours.model.hasher(torch.arange(8) + 3, batch)
        ours.model.layers[0].embed(ids[:, 0], copy.copy(batch))
        assert ours.counted("prefetched") == [0, 0]

    def test_a_model_without_a_hasher_is_left_alone(self, ranks):
        spec = ranks.spec(adapters=("engram_rows",))
        patches = {each.target: each.value for each in prefetch.install(spec, PrefetchSettings())}
        draft = SimpleNamespace(engram_hasher=None)
        assert patches[BOUND](lambda **_: draft, model=None) is draft

    def test_gathered_ids_are_left_to_the_engines_own_path(self, prefetching, place, caplog):
        ours = prefetching()
        place(0, 1, attn_dp_size=2)
        assert prefetch.bind(ours.model, ours.model.hasher, PrefetchSettings()) is None
        assert "does nothing with attention DP or CP" in caplog.text

    def test_the_engines_own_embeddings_are_refused(self, ranks):
        model = Model(engram.EngramEmbedding)
        with pytest.raises(EngineRefused, match="EngramEmbedding, not one of engram_rows"):
            prefetch.bind(model, model.hasher, PrefetchSettings())

    def test_without_engram_rows_it_is_refused(self, ranks):
        with pytest.raises(EngineRefused, match="needs the adapter engram_rows"):
            prefetch.install(ranks.spec(), PrefetchSettings())


def test_the_modules_under_test_are_those_of_the_replaced_class(ranks):
    """Module-level names of the engine's classes would be rewritten by its plugin system."""
    for module in (embedding, rows_install, prefetch):
        names = {name for name, held in vars(module).items() if isinstance(held, type)}
        held = [n for n in names if vars(module)[n].__module__.startswith("sglang")]
        assert held == []
