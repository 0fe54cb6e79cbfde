"""Formulas of unified memory against the published tables (profiles specification, section 4)."""

from __future__ import annotations

import pytest

from sparkserve.planning import memory_formulas as formulas
from sparkserve.planning.memory_model import V41_FLASH

GIB = 1 << 30
PER_TOKEN = 1670.75


def test_a_token_takes_what_the_engine_logs() -> None:
    assert formulas.kv_bytes_per_token() == PER_TOKEN
    assert V41_FLASH.kv_bytes_per_token == PER_TOKEN


@pytest.mark.parametrize(
    ("tokens", "gb", "gib"),
    [
        (326_000, 0.545, 0.507),
        (416_000, 0.695, 0.647),
        (593_000, 0.991, 0.923),
        (750_000, 1.253, 1.167),
        (1_048_576, 1.752, 1.632),
        (5_980_000, 9.991, 9.305),
        (6_490_000, 10.843, 10.098),
        (8_000_000, 13.366, 12.448),
        (8_388_608, 14.015, 13.053),
    ],
)
def test_pools_have_the_published_sizes(tokens: int, gb: float, gib: float) -> None:
    size = formulas.kv_gib(tokens, PER_TOKEN)
    assert size == pytest.approx(gib, abs=0.0006)
    assert size * GIB / 1e9 == pytest.approx(gb, abs=0.0006)
    assert formulas.kv_tokens(size, PER_TOKEN) in (tokens - 1, tokens)


def test_a_pool_of_less_than_nothing_holds_no_token() -> None:
    assert formulas.kv_tokens(-3.0, PER_TOKEN) == 0
    assert formulas.kv_tokens(0.0, PER_TOKEN) == 0


@pytest.mark.parametrize(
    ("available", "budget", "millions", "after_swa"),
    [(110, 8.4, 5.4, 5.2), (114, 11.6, 7.5, 7.2), (118, 14.8, 9.5, 9.3)],
)
def test_worked_example_of_four_ranks(
    available: float, budget: float, millions: float, after_swa: float
) -> None:
    size = formulas.kv_budget_gib(available, 77 + 2.5, 0.80)
    assert size == pytest.approx(budget, abs=0.05)
    assert formulas.kv_tokens(size, PER_TOKEN) / 1e6 == pytest.approx(millions, abs=0.06)
    left = formulas.kv_tokens(size - formulas.SWA_POOL_GIB, PER_TOKEN)
    assert left / 1e6 == pytest.approx(after_swa, abs=0.06)


def test_worked_example_of_three_ranks() -> None:
    # Measured: 0.9436 leaves nothing; the published sum for 0.95 at 115 GiB is 0.64 GiB.
    loaded = 115 * 0.9436
    assert formulas.least_fraction(115, loaded) == pytest.approx(0.9436)
    budget = formulas.kv_budget_gib(115, loaded, 0.95)
    assert budget == pytest.approx(0.64, abs=0.005)
    assert budget < formulas.kv_gib(750_000, PER_TOKEN) + formulas.SWA_POOL_GIB


def test_starts_need_what_the_specification_derives() -> None:
    four = formulas.needed_gib(79.5, formulas.kv_gib(8_000_000, PER_TOKEN), 0.80)
    three = formulas.needed_gib(103.5, formulas.kv_gib(750_000, PER_TOKEN), 0.95)
    assert four == pytest.approx(115.5, abs=0.05)
    assert three == pytest.approx(110.6, abs=0.05)


def test_a_start_with_exactly_what_it_needs_just_holds_its_pin() -> None:
    pin = formulas.kv_gib(8_000_000, PER_TOKEN)
    available = formulas.needed_gib(79.5, pin, 0.80)
    budget = formulas.kv_budget_gib(available, 79.5, 0.80)
    assert budget - formulas.SWA_POOL_GIB == pytest.approx(pin)
    fraction = formulas.least_fraction(available, 79.5, pin + formulas.SWA_POOL_GIB)
    assert fraction == pytest.approx(0.80)


@pytest.mark.parametrize(
    ("chunk", "prefix", "gb", "gib"),
    [
        (768, 262_144, 2.82, 2.62),
        (1024, 208_000, 2.98, 2.78),
        (1024, 262_144, 3.76, 3.50),
        (2048, 100_000, 2.87, 2.67),
        (512, 1_048_576, 7.52, 7.0),
        (1024, 1_048_576, 15.03, 14.0),
        (4096, 262_144, 15.03, 14.0),
        (4096, 1_048_576, 60.1, 56.0),
    ],
)
def test_prefill_peaks_have_the_published_sizes(
    chunk: int, prefix: int, gb: float, gib: float
) -> None:
    size = formulas.transient_gib(chunk, prefix, chunked=False)
    assert size == pytest.approx(gib, abs=0.006)
    assert size * GIB / 1e9 == pytest.approx(gb, abs=0.05)


def test_the_chunked_indexer_bounds_the_peak_at_any_context() -> None:
    assert formulas.transient_gib(4096, 1_048_576, chunked=True) == 2.0
    assert formulas.transient_gib(256, 4096, chunked=True) < 0.02


@pytest.mark.parametrize(
    ("prefix", "chunk"),
    [
        (32_768, 2048),
        (100_000, 1792),
        (131_072, 1280),
        (208_000, 768),
        (262_144, 512),
        (524_288, 256),
        (1_048_576, 256),
        (0, 2048),
    ],
)
def test_the_adaptive_chunk_follows_the_published_table(prefix: int, chunk: int) -> None:
    assert formulas.adaptive_chunk(prefix) == chunk


def test_the_largest_chunk_fits_its_room_and_the_next_one_does_not() -> None:
    for prefix in (100_000, 262_144, 1_048_576):
        chunk = formulas.largest_chunk(prefix, 5.0)
        assert formulas.transient_gib(chunk, prefix, chunked=False) <= 5.0
        assert formulas.transient_gib(chunk + 256, prefix, chunked=False) > 5.0
    assert formulas.largest_chunk(1_048_576, 0.1) == 0
    assert formulas.largest_chunk(1_048_576, -1.0) == 0


def test_nccl_buffers_untuned_take_what_was_measured() -> None:
    assert formulas.nccl_gib(tuned=False) == pytest.approx(4.6, abs=0.01)
    assert formulas.nccl_gib(tuned=True) * GIB == pytest.approx(0.14e9)


def test_engram_scales_and_tables_of_four_ranks() -> None:
    # Two layers of 0.72 GiB each at four ranks, 0.95 at three; tables 188.8 GiB together.
    assert formulas.scales_gib(V41_FLASH.engram_rows, 4) / 2 == pytest.approx(0.72, abs=0.005)
    assert formulas.scales_gib(V41_FLASH.engram_rows, 3) / 2 == pytest.approx(0.95, abs=0.005)
    assert formulas.tables_gib(V41_FLASH.engram_rows, 1) == pytest.approx(188.8, abs=0.05)
    assert formulas.tables_gib(V41_FLASH.engram_rows, 4) == pytest.approx(47.2, abs=0.05)


def test_weights_follow_the_published_figures_and_say_where_they_do_not() -> None:
    assert [V41_FLASH.weights(ranks)[0] for ranks in (2, 3, 4)] == [145, 101, 77]
    eight, note = V41_FLASH.weights(8)
    # 288.78 GB of experts over eight ranks and 10 GiB that every rank holds.
    assert eight == pytest.approx(268.95 / 8 + 10, abs=0.01)
    assert "derived" in note
    # The same derivation stays within 2 GiB of what was published.
    for ranks in (2, 3, 4):
        assert 268.95 / ranks + 10 == pytest.approx(V41_FLASH.weights_gib[ranks], abs=2)
