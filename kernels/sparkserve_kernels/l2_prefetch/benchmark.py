"""What is timed of the prefetch: a matrix product behind a wait, with and without it.

The wait stands for a collective, during which the memory is idle. The prefetch runs beside it on a
second stream, as it would in a model; the product that follows finds its weights in the L2 or not.
"""

from __future__ import annotations

from functools import partial

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.l2_prefetch.api import l2_prefetch, segments

ROWS, COLUMNS = 6, 5120
WAIT_CYCLES = 40_000
"""About 20 us."""


def cases() -> tuple[BenchCase, ...]:
    """Up to the 6 MB that are worth asking for; nothing is asked of them but equal results."""
    return (_case(192), _case(576))


def _case(width: int) -> BenchCase:
    weight_bytes = 2 * width * COLUMNS
    return BenchCase(
        op="l2_prefetch",
        name=f"{weight_bytes / 1e6:.1f} MB behind a wait",
        rows=ROWS,
        bytes_moved=weight_bytes + 2 * ROWS * (width + COLUMNS),
        bytes_per_copy=weight_bytes,
        prepare=partial(_prepare, width),
        stock_name="no prefetch",
        gate=partial(_gate, width),
        max_error=0.0,
    )


def _prepare(width: int, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    weights = _normal((copies, width, COLUMNS), generator)
    x = _normal((ROWS, COLUMNS), generator)
    wanted = [segments([weight], weight.device) for weight in weights]
    side = torch.cuda.Stream()

    def ours(index: int) -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            l2_prefetch(wanted[index])
        torch.cuda._sleep(WAIT_CYCLES)
        main.wait_stream(side)
        return x @ weights[index].T

    def stock(index: int) -> torch.Tensor:
        torch.cuda._sleep(WAIT_CYCLES)
        return x @ weights[index].T

    return Work(ours, stock)


def _gate(width: int, seed: int) -> float:
    """Part of a product's elements that a prefetch before it changes."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    weight, x = _normal((width, COLUMNS), generator), _normal((ROWS, COLUMNS), generator)
    before = x @ weight.T
    l2_prefetch(segments([weight, x], weight.device))
    return float(((x @ weight.T) != before).double().mean())


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, device="cuda", generator=generator).bfloat16()
