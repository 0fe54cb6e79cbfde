"""Measure the row store against fio and against a plain thread pool, all in one run.

usage: python -m sparkserve_native.bench [--json] [--path FILE] [--size-gib N] [--quick]

Everything is a ratio of two rates that were measured one after the other on the same file, and
the median over repetitions: the disk of a shared machine changes its speed by a third in minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sparkserve_native import _bench_data as data
from sparkserve_native import _bench_runs as runs
from sparkserve_native._bench_runs import Rate
from sparkserve_native.row_store import RowFile, RowStore, StoreOptions

QUEUE_DEPTH = 128
POOL_THREADS = 96
TRACE_IDS = 144
PREFILL_IDS = 24_576
TRACE_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    repetitions: int
    fio_s: float
    cold_ids: int
    trace_batches: int
    hit_rounds: int


FULL = Plan(repetitions=7, fio_s=3, cold_ids=8 * PREFILL_IDS, trace_batches=1500, hit_rounds=4)
QUICK = Plan(repetitions=3, fio_s=1, cold_ids=2 * PREFILL_IDS, trace_batches=300, hit_rounds=1)


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit code is 0, or 2 where something it needs is missing."""
    parser = argparse.ArgumentParser(prog="python -m sparkserve_native.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--path", type=Path, help="file to make or use again; kept afterwards")
    parser.add_argument("--size-gib", type=float, default=4.0, help="of the file (default 4)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    try:
        with tempfile.TemporaryDirectory(prefix="row-bench-", dir=_folder(options.path)) as folder:
            path = options.path or Path(folder) / "rows.bin"
            file = data.row_file(path, int(options.size_gib * (1 << 30)))
            report = measure(file, plan)
    except (OSError, runs.BenchError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else readable(report))
    return 0


def measure(file: RowFile, plan: Plan) -> dict[str, Any]:
    """Every case; ``ratios`` holds the medians that are asked of the store."""
    cold = _repeat(plan, lambda turn: _cold(file, plan, turn))
    duplicates = _repeat(plan, lambda turn: _duplicates(file, plan, turn))
    trace = _repeat(plan, lambda turn: _trace(file, plan, turn))
    hits = _repeat(plan, lambda turn: _hits(file, plan, turn))
    ratios = {
        "rows_vs_fio": _ratio(cold, "store", "fio"),
        "rows_vs_pread_pool": _ratio(cold, "store", "pool"),
        "cpu_vs_pread_pool": median(one["store"].cpu_us / one["pool"].cpu_us for one in cold),
        "trace_vs_pread_pool": _ratio(trace, "store", "pool"),
        "trace_vs_pread_pool_equal_cache": _ratio(trace, "store", "pool_equal_cache"),
        "trace_vs_pread_pool_no_caches": _ratio(trace, "store_no_cache", "pool"),
        "duplicates_vs_unique": _ratio(duplicates, "duplicates", "unique"),
    }
    return {
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "hits_rows_per_s_per_core": round(median(1e6 / one["hits"].cpu_us for one in hits)),
        "medians": {
            group: _medians(results)
            for group, results in (
                ("cold", cold),
                ("duplicates", duplicates),
                ("trace", trace),
                ("hits", hits),
            )
        },
        "repetitions": plan.repetitions,
        "conditions": runs.conditions(file, QUEUE_DEPTH, POOL_THREADS, TRACE_CACHE_BYTES),
    }


def readable(report: dict[str, Any]) -> str:
    """The report for a person."""
    lines = [f"{key}: {value}" for key, value in report["conditions"].items()]
    for group, rates in report["medians"].items():
        lines += ["", f"{group} (medians of {report['repetitions']})"]
        for name, rate in rates.items():
            cost = f"{rate['cpu_us_per_row']:8.3f} us CPU/row" if rate["cpu_us_per_row"] else ""
            hits = f"  {rate['hit_percent']:.0f} % hits" if rate["hit_percent"] else ""
            lines.append(f"  {name:18} {rate['rows_per_s']:>12,} rows/s  {cost}{hits}")
    lines += ["", "ratios"]
    lines += [f"  {name:32} {value:6.2f}" for name, value in report["ratios"].items()]
    lines.append(f"  hits_rows_per_s_per_core         {report['hits_rows_per_s_per_core']:,}")
    return "\n".join(lines) + "\n"


def _cold(file: RowFile, plan: Plan, turn: int) -> dict[str, Rate]:
    ids = data.uniform_ids(file.rows, plan.cold_ids, seed=turn)
    return {
        "fio": runs.fio(file, QUEUE_DEPTH, plan.fio_s),
        "store": _store_rate(file, ids, PREFILL_IDS),
        "pool": runs.pool_rate(file, ids, PREFILL_IDS, POOL_THREADS),
    }


def _duplicates(file: RowFile, plan: Plan, turn: int) -> dict[str, Rate]:
    unique = data.uniform_ids(file.rows, plan.cold_ids, seed=1000 + turn)
    doubled = data.with_duplicates(unique, PREFILL_IDS, share=0.3, seed=turn)
    return {
        "unique": _store_rate(file, unique, PREFILL_IDS),
        "duplicates": _store_rate(file, doubled, PREFILL_IDS),
    }


def _trace(file: RowFile, plan: Plan, turn: int) -> dict[str, Rate]:
    ids = data.serving_trace(file.rows, plan.trace_batches, TRACE_IDS, seed=turn)
    cache = TRACE_CACHE_BYTES
    return {
        "store": _store_rate(file, ids, TRACE_IDS, cache),
        "pool": runs.pool_rate(file, ids, TRACE_IDS, POOL_THREADS),
        "pool_equal_cache": runs.pool_rate(file, ids, TRACE_IDS, POOL_THREADS, cache),
        "store_no_cache": _store_rate(file, ids, TRACE_IDS),
    }


def _hits(file: RowFile, plan: Plan, turn: int) -> dict[str, Rate]:
    # A working set far beyond the processor's own caches, asked for in another order each time.
    ids = data.uniform_ids(file.rows, 16 * PREFILL_IDS, seed=2000 + turn)
    options = StoreOptions(cache_bytes=512 << 20, queue_depth=QUEUE_DEPTH)
    with RowStore(file, options) as store:
        runs.store_rate(store, ids, PREFILL_IDS)
        order = data.shuffled(ids, seed=turn) * plan.hit_rounds
        before = store.stats()
        rate = runs.store_rate(store, order, PREFILL_IDS)
        after = store.stats()
    share = (after.hits - before.hits) / (after.owned_ids - before.owned_ids)
    return {"hits": Rate(rate.rows_per_s, rate.cpu_us, 100 * share)}


def _store_rate(file: RowFile, ids: Any, batch: int, cache_bytes: int = 0) -> Rate:
    with RowStore(file, StoreOptions(cache_bytes=cache_bytes, queue_depth=QUEUE_DEPTH)) as store:
        rate = runs.store_rate(store, ids, batch)
        stats = store.stats()
    return Rate(rate.rows_per_s, rate.cpu_us, 100 * stats.hits / stats.owned_ids)


def _repeat(plan: Plan, case: Callable[[int], dict[str, Rate]]) -> list[dict[str, Rate]]:
    return [case(turn) for turn in range(plan.repetitions)]


def _ratio(results: list[dict[str, Rate]], ours: str, other: str) -> float:
    return median(one[ours].rows_per_s / one[other].rows_per_s for one in results)


def _medians(results: list[dict[str, Rate]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "rows_per_s": round(median(one[name].rows_per_s for one in results)),
            "cpu_us_per_row": round(median(one[name].cpu_us for one in results), 3),
            "hit_percent": round(median(one[name].hit_percent for one in results), 1),
        }
        for name in results[0]
    }


def _folder(path: Path | None) -> Path:
    # The working folder rather than /tmp, which is memory on many machines.
    return path.parent if path is not None else Path.cwd()


if __name__ == "__main__":
    raise SystemExit(main())
