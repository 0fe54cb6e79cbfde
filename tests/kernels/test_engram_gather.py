"""Engram rows by id: against float64 arithmetic on the bytes, the rules of the table and torch."""

import numpy as np
import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.engram_gather import api, reference
from sparkserve_kernels.engram_gather.api import GatherOptions, RowTable, engram_gather
from sparkserve_kernels.engram_gather.tiles import FEW_IDS, TILES, tile_for

from tests.kernels.numeric import same_bits

# numpy, on which the interpreter computes, warns where a result is infinite by rule.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: pinned memory, graphs or real sizes"
)


def random_records(rows, generator, *, scales=(0, 255)):
    """Packed rows of any bytes but NaN codes."""
    records = torch.randint(
        0, 256, (rows, 264), generator=generator, dtype=torch.uint8, device=generator.device
    )
    records[:, :256][(records[:, :256] & 0x7F) == 0x7F] = 0x31
    low, high = scales
    records[:, 256:] = torch.randint(
        low, high, (rows, 8), generator=generator, dtype=torch.uint8, device=generator.device
    )
    return records


def by_hand(records, ids, first=0):
    """Rows in float64, rounded once (docs/format/numbers.md), without torch's fp8 types."""
    codes = records.cpu().numpy()[ids.cpu().numpy().reshape(-1) - first].astype(np.int64)
    values, scales = codes[:, :256], codes[:, 256:]
    exponent, mantissa = (values >> 3) & 15, values & 7
    magnitude = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    exact = np.copysign(magnitude, np.where(values & 0x80, -1.0, 1.0))
    exact = exact * np.repeat(2.0 ** (scales - 127.0), 32, axis=1)
    return torch.from_numpy(exact).view(*ids.shape, 256)


def round_once(exact):
    """float64 to bf16, nearest even, by arithmetic on the last place."""
    _, exponent = np.frexp(exact.numpy())
    last = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    rounded = np.rint(exact.numpy() / last) * last  # rint rounds halves to even
    rounded = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, rounded), rounded)
    return torch.from_numpy(rounded)


@pytest.fixture
def options():
    return GatherOptions()


class TestValues:
    def test_every_code_under_every_scale_is_rounded_once(self, device):
        """All 65,536 pairs of a value byte and a scale byte."""
        scale = torch.arange(256, dtype=torch.uint8, device=device)
        records = torch.empty(256, 264, dtype=torch.uint8, device=device)
        records[:, :256] = torch.arange(256, dtype=torch.uint8, device=device)
        records[:, 256:] = scale[:, None]
        ids = torch.arange(256, device=device)
        got = engram_gather(ids, RowTable.of_records(records)).cpu().double()
        nan_code = (torch.arange(256) & 0x7F) == 0x7F
        assert got[:, nan_code].isnan().all()
        assert got[255].isnan().all()
        want = round_once(by_hand(records, ids))
        assert torch.equal(got[:255][:, ~nan_code], want[:255][:, ~nan_code])
        signs = torch.signbit(got[:255][:, ~nan_code])
        assert torch.equal(signs, torch.arange(256)[~nan_code].expand(255, -1) >= 128)

    def test_golden_values(self, device):
        values = torch.zeros(1, 256, dtype=torch.uint8, device=device)
        scales = torch.full((1, 8), 127, dtype=torch.uint8, device=device)
        values[0, [0, 31, 32, 255]] = torch.tensor(
            [0x7E, 0xD0, 0x08, 0x01], dtype=torch.uint8, device=device
        )
        scales[0, 1], scales[0, 7] = 133, 0
        row = engram_gather(torch.tensor([0], device=device), RowTable.of_planes(values, scales))
        assert row[0, [0, 31, 32]].tolist() == [448.0, -8.0, 1.0]
        assert row[0, 255].item() == 0.0  # 2^-136 is less than half of bf16's least value
        assert row[0].count_nonzero() == 3


class TestRows:
    @pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (4, 0, 2), (13,)])
    @pytest.mark.parametrize("packed", [False, True], ids=["planes", "records"])
    def test_rows_come_by_id(self, shape, packed, generator, device):
        records = random_records(37, generator)
        table = table_of(records, packed=packed)
        ids = torch.randint(0, 37, shape, generator=generator, device=device)
        got = engram_gather(ids, table)
        assert got.shape == (*shape, 256)
        assert torch.equal(got.cpu().double(), round_once(by_hand(records, ids)))
        assert same_bits(got, reference.engram_gather(ids, table))

    def test_foreign_ids_give_positive_zeros(self, generator, device):
        records = random_records(10, generator)
        ids = torch.tensor([99, 100, 109, 110, -1, -(2**62), 2**62, 0], device=device)
        table = RowTable.of_records(records)
        got = engram_gather(ids, table, (100, 110))
        assert torch.equal(
            got[1:3].cpu().double(), round_once(by_hand(records, ids[1:3], first=100))
        )
        foreign = got[[0, 3, 4, 5, 6, 7]]
        assert same_bits(foreign, torch.zeros_like(foreign))
        assert same_bits(got, reference.engram_gather(ids, table, (100, 110)))

    def test_a_table_of_no_rows_owns_nothing(self, device):
        table = RowTable.of_records(torch.empty(0, 264, dtype=torch.uint8, device=device))
        got = engram_gather(torch.tensor([0, 5], device=device), table)
        assert same_bits(got, torch.zeros_like(got))

    def test_ranks_with_zero_filled_foreign_rows_sum_to_the_whole(self, generator, device):
        """Why ``positive`` exists: the sum over ranks turns -0 into +0."""
        records = random_records(30, generator, scales=(100, 140))
        ids = torch.randint(0, 30, (11,), generator=generator, device=device)
        ranks = ((0, 7), (7, 20), (20, 30))
        parts = [
            engram_gather(ids, RowTable.of_records(records[lo:hi].contiguous()), (lo, hi))
            for lo, hi in ranks
        ]
        whole = RowTable.of_records(records)
        positive = GatherOptions(zero="positive")
        assert same_bits(
            parts[0] + parts[1] + parts[2], engram_gather(ids, whole, options=positive)
        )
        assert torch.signbit(engram_gather(ids, whole)[engram_gather(ids, whole) == 0]).any()

    @pytest.mark.parametrize("zero", ["signed", "positive"])
    @pytest.mark.parametrize("packed", [False, True], ids=["planes", "records"])
    def test_order_of_reading_and_layout_change_no_bit(self, zero, packed, generator, device):
        records = random_records(23, generator)
        records[:, :64] = 0x80
        ids = torch.randint(-4, 27, (5, 6), generator=generator, device=device)
        table = table_of(records, packed=packed)
        plain = engram_gather(ids, table, options=GatherOptions(zero=zero))
        by_id = api.launch(
            ids, table, (0, 23), torch.empty_like(plain), tile=tile_for("spark", FEW_IDS + 1),
            options=GatherOptions(zero=zero, visit="sorted"),
        )  # fmt: skip
        hinted = engram_gather(ids, table, options=GatherOptions(zero=zero, visit="sorted"))
        assert same_bits(plain, hinted)
        assert same_bits(plain, by_id)
        assert same_bits(plain, reference.engram_gather(ids, table, options=GatherOptions(zero)))
        assert bool(torch.signbit(plain[plain == 0]).any()) == (zero == "signed")

    @pytest.mark.parametrize("tile", {tile for pair in TILES.values() for tile in pair})
    def test_every_tile_gives_the_same_bits(self, tile, generator, device, options):
        records = random_records(23, generator)
        ids = torch.randint(-4, 27, (2 * tile.rows + 1,), generator=generator, device=device)
        table = RowTable.of_records(records)
        out = torch.empty(len(ids), 256, dtype=torch.bfloat16, device=device)
        got = api.launch(ids, table, (0, 23), out, tile=tile, options=options)
        assert same_bits(got, reference.engram_gather(ids, table))
        last = api.launch(ids[-1:], table, (0, 23), out[:1], tile=tile, options=options)
        assert same_bits(last, reference.engram_gather(ids[-1:], table))

    def test_permuted_ids_permute_rows_and_a_second_run_repeats_them(self, generator, device):
        table = RowTable.of_records(random_records(9, generator))
        ids = torch.arange(9, device=device)
        shuffled = torch.randperm(9, generator=generator, device=device)
        assert same_bits(engram_gather(ids, table)[shuffled], engram_gather(shuffled, table))
        assert same_bits(engram_gather(ids, table), engram_gather(ids, table))


class TestMemory:
    @pytest.mark.parametrize("packed", [False, True], ids=["planes", "records"])
    def test_raw_addresses_read_what_tensors_do(self, packed, generator, device):
        records = random_records(11, generator)
        table = table_of(records, packed=packed)
        if packed:
            raw = RowTable.records_at(table.values_address, 11)
        else:
            raw = RowTable.planes_at(table.values_address, table.scales_address, 11)
        ids = torch.randint(0, 11, (17,), generator=generator, device=device)
        assert same_bits(engram_gather(ids, raw), engram_gather(ids, table))

    def test_it_writes_into_the_given_tensor_and_nowhere_else(self, generator, device):
        table = RowTable.of_records(random_records(5, generator))
        guarded = torch.full((5, 256), 7.0, dtype=torch.bfloat16, device=device)
        out = guarded[1:4]
        ids = torch.tensor([4, 0, 2], device=device)
        assert engram_gather(ids, table, out=out) is out
        assert same_bits(out, reference.engram_gather(ids, table))
        assert (guarded[[0, 4]] == 7).all()

    def test_rows_beyond_two_gib_are_found(self, device):
        """Byte offsets past 2^31, which a 32-bit product would fold back into the table."""
        rows = 2**31 // 256 + 3
        if device.type == "cuda":
            values = torch.zeros(rows, 256, dtype=torch.uint8, device=device)
            scales = torch.zeros(rows, 8, dtype=torch.uint8, device=device)
        else:
            # Pages of calloc that nobody touches take no memory.
            values = torch.from_numpy(np.zeros((rows, 256), dtype=np.uint8))
            scales = torch.from_numpy(np.zeros((rows, 8), dtype=np.uint8))
        values[-1, 200], scales[-1, 6] = 0x38, 128
        ids = torch.tensor([10**12 + rows - 1, 10**12], device=device)
        got = engram_gather(ids, RowTable.of_planes(values, scales), (10**12, 10**12 + rows))
        assert got[0, 200].item() == 2.0
        assert got.count_nonzero() == 1

    @GPU_ONLY
    def test_results_beyond_two_gib_are_written(self, generator, device):
        table = RowTable.of_records(random_records(3, generator))
        ids = torch.full((2**31 // 256 + 5,), 1, device=device)
        ids[-1] = 2
        got = engram_gather(ids, table)
        assert same_bits(got[-1:], reference.engram_gather(ids[-1:], table))
        assert same_bits(got[-2:-1], reference.engram_gather(ids[-2:-1], table))

    @GPU_ONLY
    def test_pinned_host_memory_is_read_in_place(self, generator, device):
        records = random_records(64, generator)
        host = records.cpu().pin_memory()
        ids = torch.randint(0, 64, (144,), generator=generator, device=device)
        got = engram_gather(ids, RowTable.records_at(host.data_ptr(), 64))
        assert same_bits(got, engram_gather(ids, RowTable.of_records(records)))

    @GPU_ONLY
    @pytest.mark.parametrize("visit", ["given", "sorted"])
    def test_a_captured_gather_reads_new_ids_and_new_rows(self, visit, generator, device):
        records = random_records(1000, generator)
        table = RowTable.of_records(records)
        count = FEW_IDS + 1 if visit == "sorted" else 144
        ids = torch.zeros(count, dtype=torch.int64, device=device)
        out = torch.empty(count, 256, dtype=torch.bfloat16, device=device)
        options = GatherOptions(visit=visit)
        engram_gather(ids, table, out=out, options=options)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            engram_gather(ids, table, out=out, options=options)
        for _ in range(3):
            records.copy_(random_records(1000, generator))
            ids.copy_(torch.randint(0, 1000, (count,), generator=generator, device=device))
            graph.replay()
            assert same_bits(out, reference.engram_gather(ids, table))

    @GPU_ONLY
    @pytest.mark.parametrize("columns", [6, 24])
    def test_real_sizes_are_exact(self, columns, generator, device):
        records = random_records(300_007, generator)
        ids = torch.randint(0, 400_000, (4096, columns), generator=generator, device=device)
        table = RowTable.of_records(records)
        assert same_bits(engram_gather(ids, table), reference.engram_gather(ids, table))


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda a: a.update(ids=a["ids"].int()), r"ids: dtype int32, expected int64"),
            (lambda a: a.update(ids=a["ids"].view(3, 2).t()), r"ids: strides \[1, 2\] for shape"),
            (lambda a: a.update(owned=(0, 6)), r"owned ids 0 to 6, expected from 0 to 5 of them"),
            (lambda a: a.update(owned=(4, 3)), r"owned ids 4 to 3, expected"),
            (lambda a: a.update(out=a["out"].float()), r"out: dtype float32, expected bfloat16"),
            (lambda a: a.update(out=a["out"][:5]), r"out: shape \[5, 256\], expected \[6, 256\]"),
        ],
    )
    def test_calls(self, change, message, generator, device):
        arguments = {
            "ids": torch.zeros(6, dtype=torch.int64, device=device),
            "table": RowTable.of_records(random_records(5, generator)),
            "out": torch.empty(6, 256, dtype=torch.bfloat16, device=device),
        }
        change(arguments)
        with pytest.raises(KernelArgumentError, match=message):
            engram_gather(**arguments)

    def test_tables(self):
        values = torch.zeros(4, 256, dtype=torch.uint8)
        scales = torch.zeros(4, 8, dtype=torch.uint8)
        with pytest.raises(KernelArgumentError, match=r"scales: shape \[3, 8\], expected \[4, 8\]"):
            RowTable.of_planes(values, scales[:3])
        with pytest.raises(KernelArgumentError, match=r"values: strides \[512, 1\]"):
            RowTable.of_planes(values.repeat(1, 2)[:, :256], scales)
        with pytest.raises(KernelArgumentError, match=r"records: shape \[4, 256\], expected"):
            RowTable.of_records(values)
        with pytest.raises(KernelArgumentError, match=r"values = 4100, expected a multiple of 8"):
            RowTable.records_at(4100, 1)
        with pytest.raises(KernelArgumentError, match="1 rows at address 0, expected a positive"):
            RowTable.planes_at(4096, 0, 1)
        with pytest.raises(KernelArgumentError, match="1 rows at address -8, expected a positive"):
            RowTable.records_at(-8, 1)

    @pytest.mark.parametrize("name", ["zero", "visit"])
    def test_options(self, name):
        with pytest.raises(KernelArgumentError, match=f"{name} = 'none', expected "):
            GatherOptions(**{name: "none"})
        with pytest.raises(KernelArgumentError, match=r"rows = -1, expected 0 or more"):
            RowTable.planes_at(4096, 4096, -1)

    def test_the_reference_reads_no_raw_address(self):
        ids = torch.zeros(1, dtype=torch.int64)
        with pytest.raises(KernelArgumentError, match="table of raw addresses"):
            reference.engram_gather(ids, RowTable.records_at(4096, 1))

    def test_support_is_a_question_of_the_device(self, device):
        assert api.is_supported(torch.zeros(1, device=device))
        assert not api.is_supported(torch.zeros(1, device="meta"))


def table_of(records, *, packed):
    """A table of some rows in one of the layouts."""
    if packed:
        return RowTable.of_records(records)
    return RowTable.of_planes(records[:, :256].contiguous(), records[:, 256:].contiguous())
