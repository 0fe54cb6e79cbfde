"""Two ranks with rows from files say what they say with SGLang's own tables, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkserve.engram.ownership import Layout
from tests.engine.sglang_server import Rank, Server, serving_all
from tests.engine.tiny import (
    COLUMNS,
    FORWARDS,
    Seen,
    ask,
    checkpoint,
    ready_lines,
    repack,
    settled_layers,
)
from tests.ports import free_port

pytestmark = pytest.mark.engine

TP = 2


def ranks(root: Path, work_dir: Path, rows: Path | None, **more: Any) -> list[Rank]:
    port = free_port()
    return [
        Rank(
            checkpoint(root),
            work_dir / f"rank{rank}",
            rows,
            rank=rank,
            world_size=TP,
            dist_port=port,
            **more,
        )
        for rank in range(TP)
    ]


@pytest.fixture(scope="module")
def in_memory(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What SGLang says with its own tables in memory, half of them on each rank."""
    with serving_all(*ranks(tiny_root, tmp_path_factory.mktemp("memory"), None)) as servers:
        return ask(servers[0])


@pytest.mark.parametrize(
    ("layout", "rows", "prefetch"),
    [
        # A cache that holds everything; the engine's own choice of a reader.
        ("columns", {"cache_gib": 0.1}, {"check": True}),
        ("strided", {"engine": "pread"}, None),
        # A cache of some rows, and rows that cut through columns.
        ("equal", {"cache_gib": 0.0001, "cache_ways": 2}, {"check": True}),
    ],
)
def test_two_ranks_serve_their_own_files_alone_and_change_nothing(
    tiny_root: Path,
    tmp_path: Path,
    in_memory: Seen,
    layout: Layout,
    rows: dict[str, Any],
    prefetch: dict[str, Any] | None,
) -> None:
    adapters = {"engram_rows": rows}
    if prefetch is not None:
        adapters["engram_prefetch"] = prefetch
    folder = repack(tiny_root, tmp_path / "rows", layout, TP)
    both = ranks(tiny_root, tmp_path, folder, layout=layout, adapters=adapters)
    with serving_all(*both) as servers:
        assert ask(servers[0]) == in_memory
        for rank, server in enumerate(servers):
            infix = ".strided" if layout == "strided" else ""
            mine = {f"engram-l{layer}-r{rank}of{TP}{infix}.bin" for layer in (0, 1)}
            assert server.open_shards() == mine
            assert {Path(line["file"]).name for line in ready_lines(server)} == mine
            assert server.log.count("has no manifest") == 1
            judge_figures(server, len(in_memory.logprobs), rows, prefetch)


def judge_figures(
    server: Server, tokens: int, rows: dict[str, Any], prefetch: dict[str, Any] | None
) -> None:
    # Both layouts of whole columns give each rank half of every token's ids; the other does on
    # average, and every rank some.
    least = {"ids": tokens * COLUMNS // TP // 2, "hits": int("cache_gib" in rows)}
    if prefetch is not None:
        least |= {"prefetched": FORWARDS, "checked_rows": tokens * COLUMNS}
    for layer in settled_layers(server, **least):
        assert layer["hits"] + layer["misses"] == layer["ids"]
        assert layer["engine"] == rows.get("engine", layer["engine"])
        # The text repeats itself: with a cache there are hits.
        assert layer["hits"] == 0 or "cache_gib" in rows
        assert layer["cache_bytes"] <= rows.get("cache_gib", 0) * 2**30 / 2
        if prefetch is None:
            assert "prefetched" not in layer
            continue
        assert layer["prefetch"] == "on"
        assert layer["prefetch_dropped"] == 0
        assert layer["differing_rows"] == 0
