"""Rows from packed files give the log-probabilities of SGLang's own tables, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from sparkserve.engram.shard import HEADER_BYTES, read_header
from tests.engine.sglang_server import Rank, Server, serving, start, stop, wait_until

pytestmark = pytest.mark.engine

# Its first letter occurs once, so the row of the first position is read at that position only.
TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox".replace(". T", ". t")
KEY = "k\"e'y: #1 \\ {x}"


class Seen(NamedTuple):
    logprobs: list[tuple[float | None, int]]
    answer: str


def ask(server: Server) -> Seen:
    return Seen(server.logprobs(TEXT), server.chat("Say something."))


def rank(root: Path, work_dir: Path, engram_dir: Path | None, key: str | None = None) -> Rank:
    return Rank(root / "checkpoints" / "tiny-engram", work_dir, engram_dir, api_key=key)


@pytest.fixture(scope="module")
def in_memory(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What SGLang says with its own tables in memory and no word of ours."""
    with serving(rank(tiny_root, tmp_path_factory.mktemp("memory"), None)) as server:
        return ask(server)


def test_rows_from_files_change_nothing_and_the_key_stays_secret(
    tiny_root: Path, tmp_path: Path, in_memory: Seen
) -> None:
    rows = tiny_root / "engram" / "tiny-engram"
    with serving(rank(tiny_root, tmp_path, rows, KEY)) as server:
        assert ask(server) == in_memory

        reports = {report.role: report for report in server.reports()}
        assert set(reports) == {"main", "scheduler", "child"}
        assert {report.status for report in reports.values()} == {"installed"}
        assert len({report.agreement for report in reports.values()}) == 1
        assert [adapter.name for adapter in reports["scheduler"].adapters] == ["engram_rows"]

        # Four columns a token, and the statistics follow within their interval.
        asked = 4 * len(in_memory.logprobs)
        wait_until(lambda: all(layer["ids"] >= asked for layer in server.engram_layers()))
        assert [layer["layer"] for layer in server.engram_layers()] == [0, 1]
        assert all(0 < layer["rows_read"] <= layer["ids"] for layer in server.engram_layers())

        refused = httpx.get(f"http://127.0.0.1:{server.port}/v1/models")
        assert refused.status_code == 401
        # SGLang prints its settings at start; the name without the value must be there.
        assert "'api_key': '***'" in server.log
        assert "'y: #1" not in server.log
        assert KEY.encode() not in every_command_line()


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
    shutil.copytree(tiny_root / "engram" / "tiny-engram", rows)
    shard = rows / "engram-l0-r0of1.bin"
    row = first_row_of_text(tiny_root / "checkpoints" / "tiny-engram")
    flip_signs(shard, row)
    with serving(rank(tiny_root, tmp_path / "run", rows)) as server:
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


def test_a_shard_of_another_table_stops_the_real_engine(tiny_root: Path, tmp_path: Path) -> None:
    """The refusal happens in the scheduler process, after the main process has gone on."""
    rows = tmp_path / "rows"
    shutil.copytree(tiny_root / "engram" / "tiny-engram", rows)
    foreign = rows / "engram-l1-r0of1.bin"
    header = bytearray(foreign.read_bytes()[:HEADER_BYTES])
    # One more row in the whole table than the model's: nothing else in the file is wrong.
    header[32:40] = (read_header(foreign).total_rows + 1).to_bytes(8, "little")
    with foreign.open("r+b") as file:
        file.write(header)
    server = start(rank(tiny_root, tmp_path / "run", rows))
    try:
        wait_until(lambda: server.process.poll() is not None, deadline_s=180)
        assert server.process.returncode != 0
        assert f"sparkserve: FATAL engram_rows {foreign} belongs to another table" in server.log
        refused = [report for report in server.reports() if report.status == "refused"]
        assert [report.role for report in refused] == ["scheduler"]
    finally:
        stop(server)


def test_a_truncated_shard_stops_the_real_engine_with_78(tiny_root: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    shutil.copytree(tiny_root / "engram" / "tiny-engram", rows)
    shard = rows / "engram-l1-r0of1.bin"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    server = start(rank(tiny_root, tmp_path / "run", rows))
    try:
        wait_until(lambda: server.process.poll() is not None, deadline_s=180)
        assert server.process.returncode == 78
        assert f"sparkserve: FATAL engram_rows {shard} at byte " in server.log
    finally:
        stop(server)
