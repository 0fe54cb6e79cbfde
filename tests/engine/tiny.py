"""Questions to the tiny Engram model, and its rows packed in other ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from sparkserve.engram.config import EngramConfig
from sparkserve.engram.header import HEADER_BYTES
from sparkserve.engram.ownership import Layout
from sparkserve.engram.shard import read_shard, write_shard
from tests.engine.sglang_server import Server, wait_until

NAME = "tiny-engram"
# Its first letter occurs once, so the row of the first position is read at that position only.
TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox".replace(". T", ". t")
COLUMNS = 4
# One prefill and eleven decode steps for twelve tokens; the chat adds its own.
FORWARDS = 12


class Seen(NamedTuple):
    """What an engine said."""

    logprobs: list[tuple[float | None, int]]
    answer: str


def ask(server: Server) -> Seen:
    """Prompt, greedy continuation and a chat: extend and decode batches of several sizes."""
    return Seen(server.logprobs(TEXT), server.chat("Say something."))


def checkpoint(root: Path) -> Path:
    return root / "checkpoints" / NAME


def packed(root: Path) -> Path:
    return root / "engram" / NAME


def config(root: Path) -> EngramConfig:
    return EngramConfig.from_config(json.loads((checkpoint(root) / "config.json").read_text()))


def repack(root: Path, folder: Path, layout: Layout, tp: int) -> Path:
    """The same rows, cut from the files of one rank."""
    folder.mkdir(parents=True, exist_ok=True)
    model = config(root)
    for layer in model.layer_ids:
        whole = model.shard(layer, "columns", 0, 1)
        source = packed(root) / whole.file_name
        read_shard(source, whole)
        rows = source.read_bytes()[HEADER_BYTES:]
        for rank in range(tp):
            identity = model.shard(layer, layout, rank, tp)
            spans = [
                slice(s.start * model.row_bytes, s.end * model.row_bytes) for s in identity.ranges
            ]
            write_shard(folder / identity.file_name, identity.header, [rows[s] for s in spans])
    return folder


def settled_layers(server: Server, **least: int) -> list[dict[str, Any]]:
    """The layers' figures once the statistics file has caught up with what was asked.

    The file is written every now and then: figures of the prompt may be in it while those of
    the answer are not.

    least: counter -> value that every layer reaches; name each counter that the test judges.
    """

    def caught_up() -> bool:
        layers = server.engram_layers()
        return len(layers) == 2 and all(
            layer.get(counter, 0) >= value for layer in layers for counter, value in least.items()
        )

    wait_until(caught_up, what=lambda: f"at least {least}, found {server.engram_layers()}")
    return server.engram_layers()


def ready_lines(server: Server) -> list[dict[str, Any]]:
    """What each layer of a rank said when it was loaded."""
    marked = [line.partition("ENGRAM_ROWS_READY ") for line in server.log.splitlines()]
    return [json.loads(text) for _, mark, text in marked if mark]
