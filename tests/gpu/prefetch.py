"""How much of the rows' latency prefetching hides behind GPU work, by CUDA events.

Run as a script; prints one JSON object per line. Rows are cold: direct I/O, no cache, and ids
that never come twice. Medians of three ways to run one layer's turn: the work alone, the work
and then the lookup, and the work with the lookup begun before it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sparkserve.adapters.engram_prefetch.prefetch import Prefetcher
from sparkserve.adapters.engram_prefetch.side import CudaSide
from sparkserve.adapters.engram_rows import Settings
from sparkserve.adapters.engram_rows.cuda import CudaLookup
from tests.gpu.table import COLUMNS, DIM, Reference, Table, open_layer

_DEVICE = torch.device("cuda", 0)
_TOKENS = 6
"""A verify of six tokens: 36 owned ids on one of four ranks, 144 on a single one."""
_WORK_MS = 2.0
_TURNS = 150
_HEAD_START_CYCLES = 2_000_000
_WANTED = 0.8


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


class Work:
    """Matrix products that take about so long."""

    def __init__(self, wanted_ms: float) -> None:
        self.left = torch.randn(4096, 4096, device=_DEVICE, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.left)
        self.products = 10
        for _ in range(3):
            took_ms = median_ms(self, self._nothing, 20)
            self.products = max(1, round(self.products * wanted_ms / took_ms))

    def __call__(self) -> None:
        for _ in range(self.products):
            torch.mm(self.left, self.left, out=self.out)

    @staticmethod
    def _nothing(_: int) -> None:
        pass


def median_ms(turn: Callable[[], Any], before: Callable[[int], None], turns: int = _TURNS) -> float:
    """Median GPU time of a turn; ``before`` runs ahead of each and is not measured."""
    times: list[float] = []
    for index in range(turns + 10):
        before(index)
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # As in a serving engine, the CPU is ahead: no launch is waited for.
        torch.cuda._sleep(_HEAD_START_CYCLES)
        start.record()
        turn()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[10:])


class Embedding:
    """What the prefetcher sees of an embedding."""

    def __init__(self, layer: Any) -> None:
        self.ahead: Any = None
        self._lookup = CudaLookup(layer, DIM, Settings(), _DEVICE)

    def lookup(self, device: torch.device) -> CudaLookup:
        return self._lookup


class Bench:
    """One rank's share with one engine."""

    def __init__(self, table: Table, layer: Any) -> None:
        self.table = table
        self.embedding = Embedding(layer)
        self.side = CudaSide(_DEVICE, 1)
        self.prefetcher = Prefetcher([(0, self.embedding)], self.side, [])
        self.reference = Reference(table, layer.identity, "cuda")
        # Of two Engram layers, as the engine has them; the second is not looked up.
        self.hash_ids = table.ids(_TOKENS, 0).unsqueeze(1).repeat(1, 2, 1).to(_DEVICE)
        self.batch = object()
        self.seed = 0
        self.out: torch.Tensor | None = None

    def next_ids(self, _: int) -> None:
        """Ids that were never looked up."""
        self.seed += 1
        self.hash_ids[:, 0].copy_(self.table.ids(_TOKENS, self.seed))

    def in_turn(self, work: Work) -> Callable[[], None]:
        def turn() -> None:
            work()
            self.out = self.embedding.lookup(_DEVICE).now(self.hash_ids[:, 0])

        return turn

    def ahead(self, work: Work) -> Callable[[], None]:
        def turn() -> None:
            self.prefetcher.begin(self.hash_ids, self.batch)
            work()
            self.out = self.embedding.ahead.take(self.hash_ids[:, 0], self.batch)

        return turn

    def exact(self) -> bool:
        torch.cuda.synchronize()
        assert self.out is not None, "the prefetcher gave no rows"
        return int(self.reference.differing(self.out, self.hash_ids[:, 0])) == 0

    def measured(self, work: Work, wrap: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
        """Milliseconds of the three ways; wrap: how a turn is run."""
        alone = median_ms(wrap(work), self.next_ids)
        in_turn_ms = median_ms(wrap(self.in_turn(work)), self.next_ids)
        exact = self.exact()
        ahead_ms = median_ms(wrap(self.ahead(work)), self.next_ids)
        exact = exact and self.exact() and not self.prefetcher.off
        hidden = 1 - (ahead_ms - alone) / (in_turn_ms - alone)
        return {
            "work_ms": round(alone, 4),
            "work_then_lookup_ms": round(in_turn_ms, 4),
            "work_with_prefetch_ms": round(ahead_ms, 4),
            "rows_ms": round(in_turn_ms - alone, 4),
            "hidden": round(hidden, 4),
            "exact": exact,
        }


def eager(turn: Callable[[], Any]) -> Callable[[], Any]:
    return turn


def graphed(turn: Callable[[], Any]) -> Callable[[], Any]:
    """The same turn as one CUDA graph."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(_DEVICE)):
        turn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turn()
    replay: Callable[[], Any] = graph.replay
    return replay


def judge(table: Table, folder: Path, tp: int, engine: Any) -> None:
    identity = table.identity("columns", 0, tp)
    layer = open_layer(folder / identity.file_name, identity, engine)
    bench, work = Bench(table, layer), Work(_WORK_MS)
    ids = _TOKENS * COLUMNS // tp
    for name, wrap in (("eager", eager), ("in CUDA graphs", graphed)):
        found = bench.measured(work, wrap)
        if found["rows_ms"] > 0.9 * found["work_ms"]:
            # This disk is slower than the work: nothing could hide that. Take longer work too.
            say(ids=ids, engine=engine, how=name, slow_disk=found)
            found = bench.measured(Work(1.5 * found["rows_ms"]), wrap)
        says = (
            f"prefetch hides at least 80 % of the latency of {ids} cold rows behind "
            f"{found['work_ms']:.1f} ms of work ({name}, {engine})"
        )
        holds = found["hidden"] >= _WANTED and found["exact"]
        say(says=says, holds=holds, detail=json.dumps(found))
    stats = layer.store.stats()
    figures = ("engine", "direct_io", "p50_job_ns", "p99_job_ns", "reads", "lookups")
    say(ids=ids, **{figure: getattr(stats, figure) for figure in figures})


def main() -> None:
    folder = Path.cwd() / "prefetch-rows"
    folder.mkdir(parents=True, exist_ok=True)
    table = Table.random(60_000, 2)
    for tp in (1, 4):
        table.write(folder, table.identity("columns", 0, tp))
    for engine in ("io_uring", "pread"):
        for tp in (4, 1):
            try:
                judge(table, folder, tp, engine)
            except OSError as error:
                say(engine=engine, refused=str(error))


if __name__ == "__main__":
    main()
