"""Benchmark cases of the KV records: a prefill chunk written and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from sparkserve_kernels.bench_case import BenchCase, Work
from sparkserve_kernels.kv_records import api, reference
from sparkserve_kernels.kv_records.layouts import RECORDS, RecordName, page_layout

TOKENS, PAGE_SLOTS = 4096, 64


class _Inputs(NamedTuple):
    x: torch.Tensor
    slots: torch.Tensor
    cache: api.Cache

    @property
    def records(self) -> torch.Tensor:
        """(TOKENS, record bytes): a record per row, as stock torch can index it."""
        return self.cache.pages.view(TOKENS, self.cache.layout.record.record_bytes)


def cases() -> tuple[BenchCase, ...]:
    """Records whose tokens are contiguous, so that torch has a form of its own to compare with."""
    names: tuple[RecordName, ...] = ("432", "288")
    return tuple(case for name in names for case in (_pack(name), _unpack(name)))


def _draw(name: RecordName, seed: int) -> _Inputs:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn((TOKENS, reference.WIDTH), generator=generator, device="cuda")
    layout = page_layout(name, PAGE_SLOTS, "interleaved")
    shape = (TOKENS // PAGE_SLOTS, layout.page_bytes)
    pages = torch.zeros(shape, dtype=torch.uint8, device="cuda")
    slots = torch.randperm(TOKENS, generator=generator, device="cuda")
    return _Inputs(x.to(torch.bfloat16), slots, api.Cache(pages, layout))


def _different_bytes(name: RecordName, seed: int) -> float:
    """How many bytes or values differ from the reference after writing and reading back."""
    inputs = _draw(name, seed)
    api.kv_pack(*inputs)
    data, scales = reference.encode(inputs.x, name)
    wanted = torch.cat((data, scales), 1)
    wrong = (inputs.records[inputs.slots] != wanted).sum()
    for have, want in zip(
        api.kv_unpack(inputs.slots, inputs.cache),
        reference.decode(data, scales, name),
        strict=True,
    ):
        wrong += (have.view(torch.int16) != want.view(torch.int16)).sum()
    return float(wrong)


def _pack(name: RecordName) -> BenchCase:
    def prepare(copies: int) -> Work:
        inputs = [_draw(name, index) for index in range(copies)]

        def stock(x: torch.Tensor, slots: torch.Tensor, records: torch.Tensor) -> None:
            records.index_copy_(0, slots, torch.cat(reference.encode(x, name), 1))

        compiled = torch.compile(stock)
        return Work(
            ours=lambda index: api.kv_pack(*inputs[index]),
            stock=lambda index: compiled(
                inputs[index].x, inputs[index].slots, inputs[index].records
            ),
        )

    return _case(name, "write", prepare, latents=1)


def _unpack(name: RecordName) -> BenchCase:
    data_bytes = RECORDS[name].data_bytes

    def prepare(copies: int) -> Work:
        inputs = [_draw(name, index) for index in range(copies)]
        for each in inputs:
            api.kv_pack(*each)

        def stock(slots: torch.Tensor, records: torch.Tensor) -> reference.Latents:
            rows = records[slots]
            return reference.decode(rows[:, :data_bytes], rows[:, data_bytes:], name)

        compiled = torch.compile(stock)
        return Work(
            ours=lambda index: api.kv_unpack(inputs[index].slots, inputs[index].cache),
            stock=lambda index: compiled(inputs[index].slots, inputs[index].records),
        )

    return _case(name, "read", prepare, latents=2 if name == "432" else 1)


def _case(
    name: RecordName, what: str, prepare: Callable[[int], Work], *, latents: int
) -> BenchCase:
    record, latent = RECORDS[name].record_bytes, reference.WIDTH * 2

    def gate(seed: int) -> float:
        return _different_bytes(name, seed)

    return BenchCase(
        op="kv_records",
        name=f"{what} {name} tokens={TOKENS}",
        rows=TOKENS,
        bytes_moved=TOKENS * (latent * latents + record + 8),
        bytes_per_copy=TOKENS * (latent + record),
        prepare=prepare,
        stock_name="torch.compile of the reference",
        gate=gate,
        max_error=0.0,
    )
