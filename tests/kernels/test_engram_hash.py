"""Row ids and histories: bit for bit what the Engram room's numpy reference says."""

import numpy as np
import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.engram_hash import api, reference
from sparkserve_kernels.engram_hash.api import HashTables, Runs, advance_history, engram_hash

from tests.kernels.numeric import same_bits

pytest.importorskip("pydantic", reason="needs the Engram room, whose reference this is judged by")

from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.engram.hashing import MEDIA_TOKENS_START, RowHasher
from sparkserve.engram.history import Batch, RequestHistory

GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs or real sizes"
)
VOCABULARY = 50
IMAGE = 18


def small_hasher(rng, *, ngram=4, heads=3, layers=2, image=IMAGE, bits=62):
    """A model of random odd multipliers and positive divisors; large ones wrap around."""
    columns = (ngram - 1) * heads
    return RowHasher(
        token_map=rng.permutation(VOCABULARY).astype(np.int64),
        pad_id=7,
        multipliers=rng.integers(-(2**bits), 2**bits, (layers, ngram)) | 1,
        primes=rng.integers(2, 2**24, (layers, ngram - 1, heads)),
        first_rows=rng.integers(0, 2**40, (layers, columns)),
        image_token_id=image,
    )


def tables_of(hasher, device):
    """The kernel's tables of the room's hasher."""

    def tensor(array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return HashTables(
        token_map=tensor(hasher.token_map),
        multipliers=tensor(hasher.multipliers),
        primes=tensor(hasher.primes),
        first_rows=tensor(hasher.first_rows),
        pad_id=hasher.pad_id,
        image_token=hasher.image_token_id,
    )


def some_tokens(rng, count, *, plain=False):
    """Token ids; unless plain, with padding, images and parts of media among them."""
    tokens = rng.integers(0, VOCABULARY, count)
    if plain:
        return np.where(tokens == IMAGE, 1, tokens)
    special = rng.choice([-1, IMAGE, MEDIA_TOKENS_START, MEDIA_TOKENS_START + 12345], count)
    return np.where(rng.random(count) < 0.15, special, tokens)


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def on_device(device):
    """An array as a tensor beside the kernels."""
    return lambda array, dtype=None: torch.tensor(np.asarray(array), dtype=dtype, device=device)


@pytest.fixture
def case(rng, device):
    """The room's hasher and history of random content, and the kernel's copies of both."""
    hasher = small_hasher(rng)
    history = RequestHistory(hasher, 9)
    history.rows[:] = some_tokens(rng, 30).reshape(10, 3).clip(max=MEDIA_TOKENS_START)
    rows = torch.from_numpy(history.rows.copy()).to(device)
    return hasher, history, tables_of(hasher, device), rows


class TestWindows:
    def test_golden_windows_of_the_released_model(self, device, on_device):
        released = RowHasher.of(DEEPSEEK_V41_FLASH, [*range(99092), *[0] * 30188])
        tables = tables_of(released, device)
        tokens = on_device([10, 20, 30, 40])
        runs = Runs(torch.zeros(1, 3, dtype=torch.int32, device=device), None, block=4)
        ids = engram_hash(tokens, on_device([0, 1, 2, 3]), runs, tables)
        assert ids[3, 0, [0, 7, 8, 23]].tolist() == [1326936, 120570043, 142088989, 378628807]
        assert ids[3, 1, [0, 7, 8, 23]].tolist() == [5403109, 114437397, 136663117, 378588994]
        text = np.array([10, 20, 30, 40])
        assert ids.cpu().numpy().tolist() == released.hash_text(text).tolist()

    @pytest.mark.parametrize("ngram", [2, 3, 4, 5])
    @pytest.mark.parametrize("heads", [1, 3, 8])
    def test_all_orders_and_heads(self, ngram, heads, rng, device, on_device):
        hasher = small_hasher(rng, ngram=ngram, heads=heads, layers=1 + heads % 3)
        text = some_tokens(rng, 37)
        before = torch.zeros(1, ngram - 1, dtype=torch.int32, device=device)
        runs = Runs(before, None, block=37)
        ids = engram_hash(
            on_device(text), on_device(np.arange(37)), runs, tables_of(hasher, device)
        )
        assert ids.shape == (37, *hasher.shape)
        assert ids.cpu().numpy().tolist() == hasher.hash_text(text).tolist()

    def test_products_wrap_around_and_rows_are_never_negative(self, rng, device, on_device):
        """numpy's modulo has the divisor's sign, a GPU's the dividend's."""
        hasher = small_hasher(rng, bits=62)
        text = some_tokens(rng, 64, plain=True)
        mixed = np.bitwise_xor.accumulate(
            hasher.token_map[text][:, None] * hasher.multipliers[0], axis=-1
        )
        assert (mixed < 0).any()
        runs = Runs(torch.zeros(1, 3, dtype=torch.int32, device=device), None, block=64)
        ids = engram_hash(
            on_device(text), on_device(np.arange(64)), runs, tables_of(hasher, device)
        )
        assert ids.cpu().numpy().tolist() == hasher.hash_text(text).tolist()
        assert (ids.cpu().numpy() >= hasher.first_rows).all()

    def test_a_model_without_vision_has_no_image_token(self, rng, device, on_device):
        hasher = small_hasher(rng, image=None)
        text = rng.integers(0, VOCABULARY, 20)
        text[7] = IMAGE
        runs = Runs(torch.zeros(1, 3, dtype=torch.int32, device=device), None, block=20)
        ids = engram_hash(
            on_device(text), on_device(np.arange(20)), runs, tables_of(hasher, device)
        )
        assert ids.cpu().numpy().tolist() == hasher.hash_text(text).tolist()

    @pytest.mark.parametrize("stranger", [VOCABULARY, -5, 999_999])
    def test_an_id_without_a_place_in_the_map_blocks_like_padding(
        self, stranger, rng, device, on_device
    ):
        hasher = small_hasher(rng)
        text = some_tokens(rng, 11, plain=True)
        text[4] = stranger
        padded = np.where(text == stranger, -1, text)
        runs = Runs(torch.zeros(1, 3, dtype=torch.int32, device=device), None, block=11)
        ids = engram_hash(
            on_device(text), on_device(np.arange(11)), runs, tables_of(hasher, device)
        )
        assert ids.cpu().numpy().tolist() == hasher.hash_text(padded).tolist()

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_either_integer_type(self, dtype, case, rng, on_device):
        _, history, tables, rows = case
        tokens, positions = some_tokens(rng, 8), rng.integers(0, 6, 8)
        slots = rng.permutation(9)[:4]
        runs = Runs(rows, on_device(slots, dtype), block=2)
        ids = engram_hash(on_device(tokens, dtype), on_device(positions, dtype), runs, tables)
        want = history.verify(Batch(tokens, positions, slots))
        assert ids.cpu().numpy().tolist() == want.tolist()


class TestBatches:
    @pytest.mark.parametrize("requests", [1, 3, 9])
    def test_decode(self, requests, case, rng, on_device):
        _, history, tables, rows = case
        tokens, positions = some_tokens(rng, requests), rng.integers(0, 6, requests)
        slots, places = rng.permutation(9)[:requests], rng.integers(0, 3, requests)
        runs = Runs(rows, on_device(slots), block=1)
        ids = engram_hash(on_device(tokens), on_device(positions), runs, tables)
        moved = advance_history(
            rows, on_device(slots), on_device(tokens), runs,
            media=(MEDIA_TOKENS_START, IMAGE), places=on_device(places),
        )  # fmt: skip
        want = history.decode(Batch(tokens, positions, slots, places))
        assert ids.cpu().numpy().tolist() == want.tolist()
        assert moved is rows
        assert rows[:-1].cpu().numpy().tolist() == history.rows[:-1].tolist()

    @pytest.mark.parametrize("supplied", [False, True], ids=["history", "predecessors"])
    @pytest.mark.parametrize("padding", [0, 5])
    def test_extend(self, supplied, padding, case, rng, on_device):
        _, history, tables, rows = case
        lengths = np.array([3, 0, 1, 17, 0, 2])
        count = int(lengths.sum()) + padding
        tokens, positions = some_tokens(rng, count), rng.integers(0, 40, count)
        slots = rng.permutation(9)[: len(lengths)]
        places = rng.integers(0, 4, count)
        ends = on_device(lengths.cumsum())
        predecessors = None
        runs = Runs(rows, on_device(slots), ends=ends)
        if supplied:
            predecessors = some_tokens(rng, 18).reshape(6, 3).clip(max=MEDIA_TOKENS_START)
            runs = Runs(on_device(predecessors, torch.int32), None, ends=ends)
        ids = engram_hash(on_device(tokens), on_device(positions), runs, tables)
        advance_history(
            rows, on_device(slots), on_device(tokens), runs,
            media=(MEDIA_TOKENS_START, IMAGE), places=on_device(places),
        )  # fmt: skip
        want = history.extend(Batch(tokens, positions, slots, places), lengths, predecessors)
        assert ids.cpu().numpy().tolist() == want.tolist()
        assert rows[:-1].cpu().numpy().tolist() == history.rows[:-1].tolist()

    @pytest.mark.parametrize("block", [1, 2, 6])
    def test_verify_and_commit(self, block, case, rng, on_device):
        _, history, tables, rows = case
        requests = 5
        tokens = some_tokens(rng, requests * block)
        positions = rng.integers(0, 9, requests * block)
        slots = rng.permutation(9)[:requests]
        runs = Runs(rows, on_device(slots), block=block)
        ids = engram_hash(on_device(tokens), on_device(positions), runs, tables)
        want = history.verify(Batch(tokens, positions, slots))
        assert ids.cpu().numpy().tolist() == want.tolist()
        accepted = rng.integers(1, block + 1, requests)
        advance_history(
            rows, on_device(slots), on_device(tokens), runs,
            media=(MEDIA_TOKENS_START, MEDIA_TOKENS_START), accepted=on_device(accepted),
        )  # fmt: skip
        history.commit_after_verify(tokens.reshape(requests, block), slots, accepted)
        assert rows.cpu().numpy().tolist() == history.rows.tolist()

    def test_nothing_accepted_leaves_a_history_alone(self, case, rng, on_device):
        _, _, _, rows = case
        before = rows.clone()
        runs = Runs(rows, on_device([2, 4]), block=2)
        tokens, accepted = on_device(some_tokens(rng, 4)), on_device([0, 2])
        advance_history(
            rows, on_device([2, 4]), tokens, runs, media=(MEDIA_TOKENS_START, 1), accepted=accepted
        )
        assert same_bits(rows[[0, 1, 2, 3]], before[[0, 1, 2, 3]])
        assert not same_bits(rows[4], before[4])

    def test_more_runs_than_are_compared_at_once(self, rng, device, on_device):
        hasher = small_hasher(rng, heads=1, layers=1)
        history = RequestHistory(hasher, 150)
        history.rows[:] = some_tokens(rng, 453, plain=True).reshape(151, 3)
        lengths = rng.integers(0, 3, 150)
        count = int(lengths.sum())
        tokens, positions = some_tokens(rng, count), rng.integers(0, 9, count)
        slots = rng.permutation(150)
        runs = Runs(on_device(history.rows), on_device(slots), ends=on_device(lengths.cumsum()))
        ids = engram_hash(on_device(tokens), on_device(positions), runs, tables_of(hasher, device))
        want = history.extend(Batch(tokens, positions, slots), lengths)
        assert ids.cpu().numpy().tolist() == want.tolist()

    def test_batches_of_nothing(self, case, on_device):
        _, _, tables, rows = case
        nothing = on_device([], torch.int64)
        runs = Runs(rows, nothing, block=6)
        assert engram_hash(nothing, nothing, runs, tables).shape == (0, *tables.shape)
        before = rows.clone()
        advance_history(rows, nothing, nothing, runs, media=(MEDIA_TOKENS_START, 1))
        assert same_bits(rows, before)

    def test_tokens_without_requests_are_padding(self, case, on_device):
        hasher, _, tables, rows = case
        tokens = on_device([3, 4, 5])
        ids = engram_hash(tokens, on_device([9, 9, 9]), Runs(rows[:0], None, block=3), tables)
        blocked = hasher.hash_compressed(np.full((3, 4), hasher.pad_id))
        assert ids.cpu().numpy().tolist() == blocked.tolist()

    def test_results_go_where_they_are_asked_for_and_repeat(self, case, rng, on_device):
        _, _, tables, rows = case
        tokens, positions = on_device(some_tokens(rng, 19)), on_device(np.arange(19))
        runs = Runs(rows, on_device([3]), block=19)
        guarded = torch.full((21, *tables.shape), -3, device=rows.device)
        out = guarded[1:20]
        assert engram_hash(tokens, positions, runs, tables, out=out) is out
        assert same_bits(out, engram_hash(tokens, positions, runs, tables))
        assert (guarded[[0, 20]] == -3).all()


class TestReference:
    def test_it_equals_the_rooms(self, case, rng, on_device):
        _, history, tables, rows = case
        lengths = np.array([3, 0, 1, 7])
        tokens, positions = some_tokens(rng, 13), rng.integers(0, 9, 13)
        slots = rng.permutation(9)[:4]
        runs = Runs(rows, on_device(slots), ends=on_device(lengths.cumsum()))
        ids = reference.engram_hash(on_device(tokens), on_device(positions), runs, tables)
        reference.advance_history(
            rows, on_device(slots), on_device(tokens), runs, media=(MEDIA_TOKENS_START, IMAGE)
        )
        want = history.extend(Batch(tokens, positions, slots), lengths)
        assert ids.cpu().numpy().tolist() == want.tolist()
        assert rows[:-1].cpu().numpy().tolist() == history.rows[:-1].tolist()


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda a: a.update(tokens=a["tokens"].short()), r"tokens: dtype int16, expected int"),
            (
                lambda a: a.update(positions=a["positions"][:2]),
                r"positions: shape \[2\], expected \[4\]",
            ),
            (
                lambda a: a.update(runs=Runs(a["runs"].before[:, :2].contiguous(), None, block=2)),
                r"before: shape \[10, 2\], expected \[any, 3\]",
            ),
            (
                lambda a: a.update(out=torch.zeros(4, 2, 8, dtype=torch.int64)),
                r"out: shape \[4, 2, 8\], expected \[4, 2, 9\]",
            ),
        ],
    )
    def test_calls(self, change, message, case, on_device):
        _, _, tables, rows = case
        tokens = on_device([1, 2, 3, 4])
        arguments = {
            "tokens": tokens,
            "positions": tokens,
            "runs": Runs(rows, on_device([0, 1]), block=2),
            "tables": tables,
        }
        change(arguments)
        with pytest.raises(KernelArgumentError, match=message):
            engram_hash(**arguments)

    def test_runs(self, on_device):
        before = on_device(np.zeros((2, 3)), torch.int32)
        with pytest.raises(KernelArgumentError, match="block None and no ends, expected exactly"):
            Runs(before, None)
        with pytest.raises(KernelArgumentError, match="block 1 and ends, expected exactly one"):
            Runs(before, None, block=1, ends=on_device([1, 2]))
        with pytest.raises(KernelArgumentError, match="block = 0, expected at least 1"):
            Runs(before, None, block=0)
        with pytest.raises(KernelArgumentError, match=r"ends: shape \[3\], expected \[2\]"):
            Runs(before, None, ends=on_device([1, 2, 3]))

    def test_fewer_tokens_than_the_blocks_hold(self, case, on_device):
        _, _, _, rows = case
        runs = Runs(rows, on_device([0, 1]), block=3)
        with pytest.raises(KernelArgumentError, match="5 tokens, expected at least 3 for each of"):
            advance_history(
                rows, on_device([0, 1]), on_device([1] * 5), runs, media=(MEDIA_TOKENS_START, 1)
            )

    def test_tables(self, case):
        _, _, tables, _ = case
        good = {name: getattr(tables, name) for name in tables.__dataclass_fields__}
        with pytest.raises(KernelArgumentError, match=r"primes: shape \[2, 2, 3\], expected"):
            HashTables(**{**good, "primes": tables.primes[:, :2]})
        with pytest.raises(KernelArgumentError, match="token_map of 1000001 ids, expected at most"):
            HashTables(**{**good, "token_map": torch.zeros(10**6 + 1, dtype=torch.int32)})

    def test_support_is_a_question_of_the_device(self, device):
        assert api.is_supported(torch.zeros(1, device=device))
        assert not api.is_supported(torch.zeros(1, device="meta"))


@GPU_ONLY
class TestOnTheGpu:
    def test_a_real_chunk_equals_the_reference(self, rng, device, on_device):
        released = RowHasher.of(DEEPSEEK_V41_FLASH, [*range(99092), *[5] * 30188])
        tables = tables_of(released, device)
        text = rng.integers(0, 129280, 4096)
        runs = Runs(torch.zeros(1, 3, dtype=torch.int32, device=device), None, block=4096)
        ids = engram_hash(on_device(text), on_device(np.arange(4096)), runs, tables)
        assert np.array_equal(ids.cpu().numpy(), released.hash_text(text))

    def test_history_rows_beyond_two_gib_are_found(self, rng, device, on_device):
        hasher = small_hasher(rng)
        rows = 2**31 // 3 + 7
        before = torch.zeros(rows, 3, dtype=torch.int32, device=device)
        before[-1] = on_device([4, 5, 6], torch.int32)
        runs = Runs(before, on_device([rows - 1]), block=1)
        ids = engram_hash(on_device([7]), on_device([9]), runs, tables_of(hasher, device))
        want = hasher.hash_windows(np.array([[7, 6, 5, 4]]), np.zeros((1, 4), dtype=bool))
        assert ids.cpu().numpy().tolist() == want.tolist()
        advance_history(before, on_device([rows - 1]), on_device([7]), runs, media=(10**6, 1))
        assert before[-1].tolist() == [5, 6, 7]

    def test_a_captured_step_hashes_new_tokens_and_moves_on(self, case, rng, device, on_device):
        _, history, tables, rows = case
        slots, tokens = rng.permutation(9)[:2], on_device(np.ones(12), torch.int64)
        positions, accepted = on_device(np.full(12, 8)), on_device([1, 1])
        runs = Runs(rows, on_device(slots), block=6)
        out = torch.empty(12, *tables.shape, dtype=torch.int64, device=device)
        where = on_device(slots)
        media = (MEDIA_TOKENS_START, MEDIA_TOKENS_START)

        def step():
            engram_hash(tokens, positions, runs, tables, out=out)
            advance_history(rows, where, tokens, runs, media=media, accepted=accepted)

        step()
        torch.cuda.synchronize()
        rows.copy_(torch.from_numpy(history.rows))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(3):
            text, count = some_tokens(rng, 12), rng.integers(1, 7, 2)
            tokens.copy_(on_device(text))
            accepted.copy_(on_device(count))
            graph.replay()
            want = history.verify(Batch(text, np.full(12, 8), slots))
            history.commit_after_verify(text.reshape(2, 6), slots, count)
            assert out.cpu().numpy().tolist() == want.tolist()
            assert rows.cpu().numpy().tolist() == history.rows.tolist()
