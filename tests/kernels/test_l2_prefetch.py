"""The prefetch table on any machine; that it prefetches, and changes nothing, on a GPU."""

import itertools
import statistics

import pytest
import torch
import triton
import triton.language as tl
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.l2_prefetch import api, reference, tiles
from sparkserve_kernels.l2_prefetch.api import Segments, Span, l2_prefetch, segments
from sparkserve_kernels.target import UnsupportedDevice

from tests.kernels.numeric import same_bits

GPU_ONLY = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: the interpreter knows no L2"
)
CPU = torch.device("cpu")
BASE = 1 << 40


def rows(*parts, **options):
    """The table of some spans as a list."""
    return [tuple(row) for row in segments(parts, CPU, **options).table.tolist()]


class TestTable:
    def test_segments_are_cut_into_pieces_of_16_kib(self):
        assert rows(Span(BASE, 40_000)) == [
            (BASE, 16384),
            (BASE + 16384, 16384),
            (BASE + 32768, 7232),
        ]
        assert rows(Span(BASE, 32768), Span(2 * BASE, 16)) == [
            (BASE, 16384),
            (BASE + 16384, 16384),
            (2 * BASE, 16),
        ]

    def test_sizes_are_rounded_down_and_starts_up_to_16_bytes(self):
        assert rows(Span(BASE, 31)) == [(BASE, 16)]
        assert rows(Span(BASE + 1, 31)) == [(BASE + 16, 16)]
        assert rows(Span(BASE + 1, 30)) == []
        assert rows(Span(BASE, 15), Span(BASE, 0)) == []

    @pytest.mark.parametrize("start", range(0, 17, 5))
    @pytest.mark.parametrize("size", [0, 15, 16, 100, 16384, 16385, 70_001])
    def test_pieces_lie_in_their_segment_and_leave_out_its_ends_alone(self, start, size):
        pieces = rows(Span(BASE + start, size))
        assert all(at % 16 == 0 and 0 < some <= 16384 and some % 16 == 0 for at, some in pieces)
        asked = sum(some for _, some in pieces)
        assert size - 30 <= asked <= size
        for (at, some), (following, _) in itertools.pairwise(pieces):
            assert at + some == following
        if pieces:
            assert pieces[0][0] >= BASE + start
            assert sum(pieces[-1]) <= BASE + start + size

    def test_what_goes_past_the_limit_is_left_out(self):
        parts = (Span(BASE, 20_000), Span(2 * BASE, 20_000))
        assert rows(*parts, limit_bytes=20_016) == [
            (BASE, 16384),
            (BASE + 16384, 3616),
            (2 * BASE, 16),
        ]
        assert rows(*parts, limit_bytes=0) == []
        assert segments([Span(BASE, 1 << 30)], CPU).bytes == 6 << 20

    def test_tensors_stand_for_their_bytes(self):
        weight = torch.zeros(100, 100, dtype=torch.bfloat16)
        made = segments([weight, weight[50:]], CPU)
        assert made.table[0, 0].item() - weight.data_ptr() in range(16)
        assert made.bytes == sum(made.table[:, 1].tolist())
        assert 20_000 - 30 + 10_000 - 30 <= made.bytes <= 30_000

    def test_no_parts_make_an_empty_table(self):
        made = segments([], CPU)
        assert (made.pieces, made.bytes, tuple(made.table.shape)) == (0, 0, (0, 2))

    def test_gaps_and_negative_sizes_are_refused(self):
        with pytest.raises(KernelArgumentError, match=r"part: strides \[20, 1\] for shape"):
            segments([torch.zeros(4, 20)[:, :10]], CPU)
        with pytest.raises(KernelArgumentError, match=f"span of -1 bytes at {BASE}, expected 0"):
            segments([Span(BASE, -1)], CPU)
        with pytest.raises(KernelArgumentError, match="span of 64 bytes at -16, expected 0 or"):
            segments([Span(-16, 64)], CPU)
        with pytest.raises(KernelArgumentError, match="limit_bytes = -1, expected 0 or more"):
            segments([Span(BASE, 64)], CPU, limit_bytes=-1)
        with pytest.raises(KernelArgumentError, match="part on meta, expected cpu as table"):
            segments([torch.zeros(4, device="meta")], CPU)


class TestLaunch:
    @pytest.mark.parametrize(
        ("pieces", "blocks"), [(1, 1), (2, 1), (3, 2), (16, 8), (17, 8), (513, 8), (10**6, 8)]
    )
    def test_it_never_takes_more_than_eight_blocks(self, pieces, blocks):
        assert tiles.blocks_for(pieces) == blocks

    def test_without_a_gpu_it_is_refused_and_said_to_be(self):
        made = segments([Span(BASE, 64)], CPU)
        assert not api.is_supported(made.table)
        with pytest.raises(UnsupportedDevice, match="table on cpu, expected a CUDA GPU"):
            l2_prefetch(made)

    def test_its_reference_does_nothing(self):
        assert reference.l2_prefetch(segments([], CPU)) is None


@triton.jit
def _read_slowly(source, sums, steps, BLOCK: tl.constexpr):
    """Read in steps that wait for each other: time is the latency of what is read."""
    at = tl.program_id(0).to(tl.int64) * steps * BLOCK
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for _ in range(steps):
        value = tl.load(source + at + tl.arange(0, BLOCK))
        total += value
        # The next address hangs on what was read; the memory holds ones.
        at += BLOCK * tl.max(value, axis=0)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


@GPU_ONLY
class TestOnTheGpu:
    WORDS = (4 << 20) // 4
    PROGRAMS, BLOCK = 16, 512

    @pytest.fixture
    def read_us(self, device):
        """Time of reading 4 MiB after the L2 was filled with other things and a step was taken."""
        flush = torch.zeros(256 << 20, dtype=torch.uint8, device=device)
        sums = torch.zeros(self.PROGRAMS, dtype=torch.int32, device=device)
        steps = self.WORDS // self.PROGRAMS // self.BLOCK

        def measure(source, step):
            times = []
            for _ in range(7):
                flush.add_(1)
                step()
                torch.cuda._sleep(200_000)  # the prefetch has no event that tells of its arrival
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                _read_slowly[(self.PROGRAMS,)](source, sums, steps, BLOCK=self.BLOCK, num_warps=4)
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) * 1e3)
                assert int(sums.sum()) == self.WORDS
            return statistics.median(times[2:])

        return measure

    def test_what_was_prefetched_is_read_from_the_l2(self, read_us, device):
        source = torch.ones(self.WORDS, dtype=torch.int32, device=device)
        other = torch.ones(self.WORDS, dtype=torch.int32, device=device)
        cold = read_us(source, lambda: None)
        beside = read_us(source, lambda: l2_prefetch(segments([other], device)))
        warm = read_us(source, lambda: l2_prefetch(segments([source], device)))
        touched = read_us(source, lambda: source.sum())
        assert warm < 0.85 * cold, (warm, cold, beside, touched)
        assert warm < 0.85 * beside, (warm, cold, beside, touched)

    def test_nothing_that_it_touches_changes(self, generator, device):
        memory = torch.randint(0, 256, (9_000_001,), generator=generator, device=device).byte()
        before = memory.clone()
        parts = [memory[3:700_000], memory[5_000_000:], memory[1:2]]
        l2_prefetch(segments(parts, device, limit_bytes=1 << 30))
        torch.cuda.synchronize()
        assert same_bits(memory, before)

    def test_more_pieces_than_threads_and_none_at_all(self, device):
        memory = torch.zeros(20 << 20, dtype=torch.uint8, device=device)
        many = segments([memory], device, limit_bytes=1 << 30)
        assert many.pieces > tiles.MAX_BLOCKS * tiles.THREADS
        l2_prefetch(many)
        l2_prefetch(Segments(many.table[:0], 0))
        torch.cuda.synchronize()

    def test_a_captured_fork_and_join_gives_the_same_product(self, generator, device):
        x = torch.randn(6, 5120, generator=generator, device=device).bfloat16()
        weight = torch.randn(576, 5120, generator=generator, device=device).bfloat16()
        want = x @ weight.T
        wanted, side = segments([weight], device), torch.cuda.Stream()
        l2_prefetch(wanted)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                l2_prefetch(wanted)
            main.wait_stream(side)
            got = x @ weight.T
        for _ in range(3):
            got.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert same_bits(got, want)
