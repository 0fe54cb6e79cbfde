"""Rows from packed files give the log-probabilities of SGLang's own tables, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sparkserve.engram.header import HEADER_BYTES
from sparkserve.engram.shard import read_header
from tests.engine.sglang_server import Rank, serving, start, stop, wait_until
from tests.engine.tiny import (
    COLUMNS,
    FORWARDS,
    TEXT,
    Seen,
    ask,
    checkpoint,
    packed,
    ready_lines,
    repack,
    settled_layers,
)

pytestmark = pytest.mark.engine

KEY = "k\"e'y: #1 \\ {x}"
REPOSITORY = Path(__file__).parents[2]
OLDER = "0.5.21"
AHEAD = {"engram_rows": {"cache_gib": 0.0001}, "engram_prefetch": {"check": True}}


def rank(root: Path, work_dir: Path, engram_dir: Path | None, **more: Any) -> Rank:
    return Rank(checkpoint(root), work_dir, engram_dir, **more)


@pytest.fixture(scope="module")
def in_memory(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What SGLang says with its own tables in memory and no word of ours."""
    with serving(rank(tiny_root, tmp_path_factory.mktemp("memory"), None)) as server:
        return ask(server)


def test_rows_fetched_ahead_change_nothing_and_the_key_stays_secret(
    tiny_root: Path, tmp_path: Path, in_memory: Seen
) -> None:
    ours = rank(tiny_root, tmp_path, packed(tiny_root), api_key=KEY, adapters=AHEAD)
    with serving(ours) as server:
        assert ask(server) == in_memory

        reports = {report.role: report for report in server.reports()}
        assert set(reports) == {"main", "scheduler", "child"}
        assert {report.status for report in reports.values()} == {"installed"}
        assert len({report.agreement for report in reports.values()}) == 1
        installed = [adapter.name for adapter in reports["scheduler"].adapters]
        assert installed == ["engram_rows", "engram_prefetch"]

        ids = COLUMNS * len(in_memory.logprobs)
        layers = settled_layers(server, ids=ids, checked_rows=ids, prefetched=FORWARDS, hits=1)
        assert [layer["layer"] for layer in layers] == [0, 1]
        for layer in layers:
            assert 0 < layer["rows_read"] < layer["ids"]
            assert layer["prefetch_dropped"] == 0
            assert layer["differing_rows"] == 0
        ready = ready_lines(server)
        assert [line["layer"] for line in ready] == [0, 1]
        assert all(line["packed"] and line["manifest_sha256"] for line in ready)
        assert "has no manifest" not in server.log

        refused = httpx.get(f"http://127.0.0.1:{server.port}/v1/models")
        assert refused.status_code == 401
        # SGLang prints its settings at start; the name without the value must be there.
        assert "'api_key': '***'" in server.log
        assert "'y: #1" not in server.log
        assert KEY.encode() not in every_command_line()


def test_the_older_release_serves_the_same_rows(tiny_root: Path, tmp_path: Path) -> None:
    older = REPOSITORY / ".cache" / f"sglang-{OLDER}"
    if not older.is_dir():
        pytest.skip(f"{older} is missing: run `make engine`")
    with serving(rank(tiny_root, tmp_path / "memory", None, engine_path=older)) as server:
        in_memory = ask(server)
    ours = rank(tiny_root, tmp_path / "rows", packed(tiny_root), adapters=AHEAD, engine_path=older)
    with serving(ours) as server:
        assert ask(server) == in_memory
        assert {report.engine_version for report in server.reports()} == {OLDER}
        ids = COLUMNS * len(in_memory.logprobs)
        for layer in settled_layers(server, ids=ids, checked_rows=ids, prefetched=FORWARDS):
            assert layer["differing_rows"] == 0


def every_command_line() -> bytes:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return b"\0".join(lines)


def test_one_corrupted_row_changes_the_log_probabilities_from_its_token_on(
    tiny_root: Path, tmp_path: Path, in_memory: Seen
) -> None:
    rows = tmp_path / "rows"
    shutil.copytree(packed(tiny_root), rows)
    flip_signs(rows / "engram-l0-r0of1.bin", first_row_of_text(checkpoint(tiny_root)))
    # No prefetch, no cache, and the reader that needs nothing of the kernel.
    plain = {"engram_rows": {"engine": "pread"}}
    with serving(rank(tiny_root, tmp_path / "run", rows, adapters=plain)) as server:
        corrupted = server.logprobs(TEXT)
    pairs = enumerate(zip(corrupted, in_memory.logprobs, strict=False))
    # Position 0 has no log-probability: nothing comes before it.
    assert next(position for position, (one, other) in pairs if one != other) == 1


def first_row_of_text(checkpoint: Path) -> int:
    """Row of layer 0, order 2, head 0 at position 0, by the published hash."""
    config = json.loads((checkpoint / "config.json").read_text())
    compressed = config["engram_compressed_vocab_size"]
    bound = max(1, (np.iinfo(np.int64).max // compressed) // 2)
    draws = np.random.default_rng(10007 * 0).integers(0, bound, size=3, dtype=np.int64)
    first, second = (2 * int(draw) + 1 for draw in draws[:2])
    # The tiny tokenizer folds nothing below the first upper-case letter but case, accents and
    # white space, so the map is taken from SGLang's own rule as we implement it.
    from tokenizers import Tokenizer

    from sparkserve.engram.layout import column_sizes
    from sparkserve.engram.token_map import token_map

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids, count = token_map(tokenizer)
    assert count == compressed
    token = tokenizer.encode(TEXT).ids[0]
    prime = column_sizes(2, 3, 2, config["engram_vocab_size"])[0][0]
    return (ids[token] * first ^ ids[config["engram_pad_token_id"]] * second) % prime


def flip_signs(shard: Path, row: int) -> None:
    header = read_header(shard)
    assert header.row_start <= row < header.row_end
    with shard.open("r+b") as file:
        file.seek(HEADER_BYTES + row * header.row_bytes)
        weights = file.read(header.dim)
        file.seek(HEADER_BYTES + row * header.row_bytes)
        file.write(bytes(byte ^ 0x80 for byte in weights))


def cut(rows: Path) -> str:
    shard = rows / "engram-l1-r0of1.bin"
    size = shard.stat().st_size - 1
    with shard.open("r+b") as file:
        file.truncate(size)
    return f"{shard} at byte {size}: file ends here"


def grow_the_table(rows: Path) -> str:
    shard = rows / "engram-l1-r0of1.bin"
    header = read_header(shard)
    with shard.open("r+b") as file:
        file.seek(32)
        # One more row in the whole table than the model's: nothing else in the file is wrong.
        file.write((header.total_rows + 1).to_bytes(8, "little"))
    return f"{shard} at byte 32: total_rows is {header.total_rows + 1}, but layout columns gives"


def swap_ranks(rows: Path) -> str:
    (rows / "engram-l0-r0of1.bin").unlink()
    shutil.copy(rows / "engram-l0-r1of2.bin", rows / "engram-l0-r0of1.bin")
    return f"{rows / 'engram-l0-r0of1.bin'} at byte 16: row_start is "


def change_the_checkpoint_after_packing(rows: Path) -> str:
    manifest = rows / "manifest-r0of1.json"
    held = json.loads(manifest.read_text())
    held["checkpoint_config_sha256"] = "1" * 64
    manifest.write_text(json.dumps(held))
    return f"{manifest}: the manifest does not fit: config.json: {'1' * 64}, expected "


@pytest.mark.parametrize(
    "harm", [cut, grow_the_table, swap_ranks, change_the_checkpoint_after_packing]
)
def test_the_real_engine_does_not_start_over_a_wrong_shard(
    tiny_root: Path, tmp_path: Path, harm: Callable[[Path], str]
) -> None:
    rows = tmp_path / "rows"
    shutil.copytree(packed(tiny_root), rows)
    refused_with(rank(tiny_root, tmp_path / "run", rows), harm(rows))


def test_the_real_engine_does_not_start_over_another_layout(
    tiny_root: Path, tmp_path: Path
) -> None:
    rows = repack(tiny_root, tmp_path / "rows", "equal", 2)
    ours = rank(tiny_root, tmp_path / "run", rows, rank=1, world_size=2)
    refused_with(ours, f"{rows / 'engram-l0-r1of2.bin'} at byte 16: row_start is ")


def refused_with(ours: Rank, words: str) -> None:
    server = start(ours)
    try:
        wait_until(lambda: server.process.poll() is not None, deadline_s=180)
        assert server.process.returncode == 78
        assert f"sparkserve: FATAL engram_rows {words}" in server.log
        assert [report.status for report in server.reports()] == ["refused"]
    finally:
        stop(server)
