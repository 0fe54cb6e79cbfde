"""The adapter's lookup in captured CUDA graphs, against a gather over the table in memory.

Run as a script; prints one JSON object per line: records, and verdicts with ``says``.
``--fatal``: look up an id that does not exist, which must end the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from sparkserve.adapters.engram_rows import Settings
from sparkserve.adapters.engram_rows.cuda import CudaLookup
from sparkserve.engram.ownership import Layout
from sparkserve.errors import EngineRefused
from tests.gpu.table import COLUMNS, DIM, Reference, Table, open_layer

_DEVICE = torch.device("cuda", 0)
_CAPTURED = (1, 24, 144, 576)
_EAGER = (1152, 49152)
_REPLAYS = 320
_FIGURES = ("engine", "direct_io", "alignment_bytes", "lookups", "owned_ids", "reads",
            "bytes_read", "p50_job_ns", "p99_job_ns")  # fmt: skip
Share = tuple[Layout, int, int]
_SHARES: tuple[Share, ...] = (
    ("columns", 0, 1),
    ("columns", 2, 4),
    ("strided", 1, 4),
    ("equal", 1, 3),
)


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def ids_of(table: Table, count: int, seed: int) -> torch.Tensor:
    """So many ids: whole tokens of 24 columns where that divides, else a flat list."""
    tokens = -(-count // COLUMNS)
    ids = table.ids(tokens, seed)
    return ids if count % COLUMNS == 0 else ids.reshape(-1)[:count].contiguous()


def lookup_of(layer: Any, gather_from: str = "device") -> CudaLookup:
    return CudaLookup(layer, DIM, Settings(gather_from=gather_from), _DEVICE)


def addresses(lookup: CudaLookup) -> dict[int, tuple[int, ...]]:
    """Everything whose address a graph has baked in, per number of ids."""
    return {
        count: (
            lane.job.address,
            lane.staging.ids.data_ptr(),
            lane.staging.weights.data_ptr(),
            lane.staging.scales.data_ptr(),
            lane.staging.device_weights.data_ptr(),
            lane.staging.device_scales.data_ptr(),
        )
        for count, lane in lookup._lanes.items()
    }


class Captured:
    """One number of ids in one graph."""

    def __init__(self, table: Table, lookup: CudaLookup, count: int) -> None:
        self.table, self.count = table, count
        # Its buffers and jobs are baked into the graph, so it must live as long.
        self.lookup = lookup
        # As the engine has them: one layer's part of the hash of all layers.
        flat = ids_of(table, count, 1)
        self.hash_ids = torch.zeros((flat.shape[0], 2, *flat.shape[1:]), dtype=torch.int64)
        self.hash_ids = self.hash_ids.to(_DEVICE)
        self.ids = self.hash_ids[:, 1]
        self.ids.copy_(flat)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream(_DEVICE)):
            lookup.now(self.ids)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = lookup.now(self.ids)

    def differing(self, reference: Reference, seeds: range) -> torch.Tensor:
        """Replay with ids that change every time; gives the rows that were wrong."""
        wrong = torch.zeros((), dtype=torch.int64, device=_DEVICE)
        for seed in seeds:
            self.ids.copy_(ids_of(self.table, self.count, seed), non_blocking=True)
            self.out.fill_(float("nan"))
            self.graph.replay()
            wrong += reference.differing(self.out, self.ids)
        return wrong


def replays(table: Table, folder: Path, share: Share, engine: Any) -> None:
    """All counts of one rank's share with one engine of the store."""
    again = _REPLAYS if share == _SHARES[0] else _REPLAYS // 4
    identity = table.identity(*share)
    name = f"{share[0]} {share[1]} of {share[2]}, {engine}"
    layer = open_layer(table.write(folder, identity), identity, engine)
    lookup = lookup_of(layer)
    reference = Reference(table, identity, "cuda")
    graphs = [Captured(table, lookup, count) for count in _CAPTURED]
    before = addresses(lookup)
    wrong = sum(int(graph.differing(reference, range(100, 100 + again))) for graph in graphs)
    eager = 0
    for count in _EAGER:
        ids = ids_of(table, count, count).to(_DEVICE)
        eager += int(reference.differing(lookup.now(ids), ids))
    # The graphs again, after larger lookups have made buffers of their own.
    wrong += sum(int(graph.differing(reference, range(9000, 9020))) for graph in graphs)
    done = len(graphs) * (again + 20)
    says = f"{done} replays with changing ids are exact ({name}; {_CAPTURED} ids)"
    say(says=says, holds=wrong == 0, detail=f"{wrong} rows differ")
    say(says=f"eager lookups of {_EAGER} ids are exact ({name})", holds=eager == 0)
    after = addresses(lookup)
    stable = all(after[count] == found for count, found in before.items())
    says = f"buffers and jobs keep their addresses ({name})"
    say(says=says, holds=stable and len(before) == len(graphs))
    stats = layer.store.stats()
    say(share=name, **{figure: getattr(stats, figure) for figure in _FIGURES})
    torch.cuda.synchronize()


def refuses_unwarmed(table: Table, folder: Path) -> None:
    identity = table.identity("columns", 0, 1)
    lookup = lookup_of(open_layer(folder / identity.file_name, identity, "pread"))
    ids = ids_of(table, 48, 1).to(_DEVICE)
    refused = ""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            lookup.now(ids)
    except EngineRefused as error:
        refused = error.reason
    except RuntimeError as error:
        # The end of a capture that holds nothing may complain on its own.
        refused = str(error.__context__)
    says = "a number of ids that was not warmed is refused during a capture"
    say(says=says, holds="was not warmed" in refused, detail=refused)


def pinned(table: Table, folder: Path) -> None:
    """The gather that reads pinned memory, in a graph."""
    identity = table.identity("columns", 0, 1)
    layer = open_layer(folder / identity.file_name, identity, "pread")
    graph = Captured(table, lookup_of(layer, "pinned"), 144)
    wrong = int(graph.differing(Reference(table, identity, "cuda"), range(200)))
    say(says="200 replays that gather from pinned memory are exact", holds=wrong == 0)


def fatal() -> None:
    """An id outside the table ends the process from within the host function."""
    command = [sys.executable, "-m", "tests.gpu.graph", "--fatal"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    line = next((each for each in done.stderr.splitlines() if "FATAL" in each), "")
    says = "an id outside the table ends the process with code 78 and one line that says so"
    holds = done.returncode == 78 and "FATAL engram_rows" in line
    say(says=says, holds=holds, detail=f"exit {done.returncode}: {line[:300]}")


def look_up_what_is_not_there(folder: Path) -> None:
    table = Table.random(50, 3)
    identity = table.identity("columns", 0, 1)
    layer = open_layer(table.write(folder, identity), identity, "pread")
    graph = Captured(table, lookup_of(layer), 24)
    graph.ids.fill_(table.total_rows)
    graph.graph.replay()
    torch.cuda.synchronize()


def main() -> None:
    folder = Path.cwd() / "graph-rows"
    if "--fatal" in sys.argv:
        folder = folder / "fatal"
        folder.mkdir(parents=True, exist_ok=True)
        look_up_what_is_not_there(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    table = Table.random(20_000, 1)
    # The whole table first: what is cut off by a time limit should be the lesser shares.
    for share in _SHARES:
        for engine in ("pread", "io_uring"):
            try:
                replays(table, folder, share, engine)
            except OSError as error:
                say(engine=engine, refused=str(error))
    pinned(table, folder)
    fatal()
    refuses_unwarmed(table, folder)


if __name__ == "__main__":
    main()
