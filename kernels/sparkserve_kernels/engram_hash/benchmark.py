"""What is timed of the hash: the ids of a decode step and of a prefill chunk, both layers."""

from __future__ import annotations

from functools import partial

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.engram_hash import reference
from sparkserve_kernels.engram_hash.api import HashTables, Runs, engram_hash

LAYERS, NGRAM, HEADS = 2, 4, 8
VOCABULARY, COMPRESSED, IMAGE, PAD = 129280, 99092, 129264, 2
COLUMNS = (NGRAM - 1) * HEADS
BYTES_PER_TOKEN = 8 + 8 + LAYERS * COLUMNS * 8
"""Token and position read, ids written; the tables stay in the L2."""


def cases() -> tuple[BenchCase, ...]:
    """Six tokens to verify, 96, and a chunk; nothing is asked of them but to be there."""
    return (_case(1, 6), _case(16, 6), _case(1, 4096))


def _case(requests: int, block: int) -> BenchCase:
    rows = requests * block
    return BenchCase(
        op="engram_hash",
        name=f"rows={rows}",
        rows=rows,
        bytes_moved=rows * BYTES_PER_TOKEN,
        bytes_per_copy=rows * BYTES_PER_TOKEN,
        prepare=partial(_prepare, requests, block),
        stock_name="torch.compile",
        gate=partial(_gate, requests, block),
        max_error=0.0,
    )


def random_tables(generator: torch.Generator) -> HashTables:
    """Tables of the released model's sizes and magnitudes."""
    device = generator.device

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, device=device, generator=generator)

    first_rows = torch.arange(COLUMNS, device=device) * 16_000_500
    return HashTables(
        token_map=draw(0, COMPRESSED, VOCABULARY),
        multipliers=draw(0, 46_539_438_283_891, LAYERS, NGRAM) * 2 + 1,
        primes=draw(16_000_000, 16_000_500, LAYERS, NGRAM - 1, HEADS),
        first_rows=first_rows.expand(LAYERS, -1).contiguous(),
        pad_id=PAD,
        image_token=IMAGE,
    )


def _batch(
    requests: int, block: int, copies: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, Runs]:
    device, size = generator.device, (copies, requests * block)
    tokens = torch.randint(0, VOCABULARY, size, device=device, generator=generator)
    positions = torch.randint(0, 4096, size, device=device, generator=generator)
    shape = (requests + 1, NGRAM - 1)
    history = torch.randint(0, VOCABULARY, shape, device=device, generator=generator)
    slots = torch.randperm(requests, device=device, generator=generator)
    return tokens, positions, Runs(history.int(), slots, block=block)


def _prepare(requests: int, block: int, copies: int) -> Work:
    generator = torch.Generator(device="cuda").manual_seed(0)
    tables = random_tables(generator)
    tokens, positions, runs = _batch(requests, block, copies, generator)
    stock = torch.compile(reference.engram_hash, dynamic=False)

    def ours(index: int) -> torch.Tensor:
        return engram_hash(tokens[index], positions[index], runs, tables)

    def theirs(index: int) -> torch.Tensor:
        result: torch.Tensor = stock(tokens[index], positions[index], runs, tables)
        return result

    return Work(ours, theirs)


def _gate(requests: int, block: int, seed: int) -> float:
    """Part of the ids that differ from the reference in integers on the CPU."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tables = random_tables(generator)
    tokens, positions, runs = _batch(requests, block, 1, generator)
    want = reference.engram_hash(tokens[0], positions[0], runs, tables)
    named = ("token_map", "multipliers", "primes", "first_rows")
    moved = HashTables(
        **{name: getattr(tables, name).cuda() for name in named},
        pad_id=PAD,
        image_token=IMAGE,
    )
    rows = None if runs.rows is None else runs.rows.cuda()
    there = Runs(runs.before.cuda(), rows, block=block)
    got = engram_hash(tokens[0].cuda(), positions[0].cuda(), there, moved)
    return float((got.cpu() != want).double().mean())
