"""Time on a GPU: calls in a CUDA graph over rotated inputs, and the bandwidth they compare with."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

STREAM_BYTES = 4 << 30
"""What the streaming kernel reads: far more than any cache."""
CALLS_AT_LEAST = 16
REPLAYS = 15
MAX_COPY_BYTES = 6 << 30


def copies_for(bytes_per_copy: int) -> int:
    """How many copies rotate so that none is still in the L2 when its turn comes again.

    At least two, four times the L2 together, and no more than fits in 6 GiB.
    """
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    wanted = -(-4 * int(properties.L2_cache_size) // max(bytes_per_copy, 1))
    return max(2, min(wanted, MAX_COPY_BYTES // max(bytes_per_copy, 1), 512))


def time_calls_us(call: Callable[[int], Any], copies: int) -> list[float]:
    """Microseconds per call, one figure per replay of a graph that goes through all copies.

    The graph leaves the host out: what is timed is what a decode step inside a graph costs.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for index in range(min(copies, 3)):
            call(index)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    rounds = -(-CALLS_AT_LEAST // copies)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for index in range(copies):
                call(index)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (rounds * copies))
    return times


def spread(times: list[float]) -> dict[str, float]:
    """Median, 20th and 80th percentile."""
    ordered = sorted(times)
    return {
        "p20": round(ordered[len(ordered) // 5], 3),
        "p50": round(statistics.median(ordered), 3),
        "p80": round(ordered[(4 * len(ordered)) // 5], 3),
    }


@triton.jit
def _stream_kernel(source, sums, count, BLOCK: tl.constexpr):
    """Read everything once and keep one sum per program, so that no load can be left out."""
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    at = tl.program_id(0).to(tl.int64) * BLOCK
    while at < count:
        here = at + tl.arange(0, BLOCK)
        total += tl.load(source + here, mask=here < count, other=0)
        at += step
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


def read_bandwidth_gbs() -> float:
    """GB/s that a plain streaming kernel over 4 GiB reads, the best of several launch shapes."""
    source = torch.ones(STREAM_BYTES // 4, dtype=torch.int32, device="cuda")
    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    best = 0.0
    for block, warps, per_processor in ((4096, 8, 8), (8192, 8, 4), (4096, 4, 16)):
        grid = (processors * per_processor,)
        sums = torch.empty(grid[0], dtype=torch.int32, device="cuda")

        def call(
            _: int, grid: Any = grid, sums: Any = sums, b: int = block, w: int = warps
        ) -> None:
            _stream_kernel[grid](source, sums, source.numel(), BLOCK=b, num_warps=w)

        times = time_calls_us(call, 2)
        if int(sums.sum()) != source.numel():
            raise RuntimeError(f"the streaming kernel read {int(sums.sum())} of {source.numel()}")
        best = max(best, STREAM_BYTES / statistics.median(times) / 1e3)
    return best
