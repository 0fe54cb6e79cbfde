"""Packed Engram shards as lists, manifests and progress show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sparkserve.facts.file_sizes import FileSize, sizes_of
from sparkserve.facts.jsontext import count, json_values, number
from sparkserve.facts.pack_manifest import PackManifest, manifests_of
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading
from sparkserve.units import parse_bytes

_MOST_LINES = 20_000


class ShardSizes(Fact):
    """Sizes of files in a folder of shards."""

    files: tuple[FileSize, ...]
    whole_folder: bool
    """Whether what is not listed is not there."""


class SelfTestLine(Model):
    """Rows of one layer that were compared with the checkpoint."""

    layer: int | None = None
    rows: int | None = None
    mismatches: int


class SelfTest(Fact):
    """What comparing some rows with the checkpoint gave."""

    lines: tuple[SelfTestLine, ...]


class RankReads(Model):
    """Rows that one rank read."""

    rank: int
    rows: int


class RowReads(Fact):
    """Rows that each rank read in the same time."""

    ranks: tuple[RankReads, ...]


class PackProgress(Fact):
    """How far a packer was, over time: (seconds, bytes)."""

    points: tuple[tuple[float, int], ...]


class Target(Model):
    """A file that a packer was about to make."""

    name: str
    exists: bool
    size_bytes: int | None = None
    vouched: bool = False
    """Whether it is told to be whole and to be kept."""


class PackTargets(Fact):
    """What stood in the way when a packer started."""

    targets: tuple[Target, ...]


class TokenIds(Fact):
    """Token ids of one batch."""

    ids: tuple[int, ...]
    vocabulary: int | None = None
    """Number of ids of the tokenizer; None = not said."""


def _sizes(reading: Reading) -> Iterable[Fact]:
    command = reading.command or ""
    files = sizes_of(command, reading.text)
    if not files:
        raise UnusableOutput("no file with its size")
    whole = re.search(r"\*|\bfind\b|\bdu\b|\bls\b(?!.*\.bin\b)", command) is not None
    yield ShardSizes(files=files, whole_folder=whole)


def _manifest(reading: Reading) -> Iterable[Fact]:
    found = manifests_of(json_values(reading.text))
    if not found:
        raise UnusableOutput("no manifest of packed rows")
    yield from found


def _self_test(reading: Reading) -> Iterable[Fact]:
    lines = tuple(_compared(reading.text))
    if not lines:
        raise UnusableOutput("no count of rows that differ")
    yield SelfTest(lines=lines)


_DIFFER = r"(?:mis\w*match\w*|differ\w*|wrong|unequal|bad)"
_LAYER = re.compile(r"(?i)\blayer[\"']?\s{0,3}[=:]?\s{0,3}([0-9]{1,4})\b")
_ROWS = re.compile(r"(?i)\b(?:rows|of|checked)[\"']?\s{0,3}[=:]?\s{0,3}([0-9]{1,9})\b")
_WRONG = (
    re.compile(rf"(?i)\b{_DIFFER}(?:_rows)?[\"']?\s{{0,3}}[=:]\s{{0,3}}([0-9]{{1,9}})\b"),
    re.compile(rf"(?i)\b([0-9]{{1,9}})(?: of [0-9]{{1,9}})?(?: \w{{1,12}})? {_DIFFER}\b"),
)
_ALIKE = re.compile(r"(?i)\b(?:no mismatch\w*|all (?:rows )?(?:equal|match))")


def _compared(text: str) -> Iterator[SelfTestLine]:
    for line in text.splitlines()[:_MOST_LINES]:
        line = line[:500]
        layer, rows = _LAYER.search(line), _ROWS.search(line)
        wrong = next((found for regex in _WRONG if (found := regex.search(line))), None)
        if wrong is not None or _ALIKE.search(line):
            yield SelfTestLine(
                layer=int(layer[1]) if layer else None,
                rows=int(rows[1]) if rows else None,
                mismatches=int(wrong[1]) if wrong else 0,
            )


def _reads(reading: Reading) -> Iterable[Fact]:
    found = dict(_read_counts(reading))
    if not found:
        raise UnusableOutput("no rank with its number of rows")
    ranks = (RankReads(rank=rank, rows=rows) for rank, rows in sorted(found.items()))
    yield RowReads(ranks=tuple(ranks))


def _read_counts(reading: Reading) -> Iterator[tuple[int, int]]:
    try:
        values = json_values(reading.text)
    except UnusableOutput:
        values = []
    for value in values:
        yield from _counts_of_json(value)
    named = re.compile(
        r"(?i)(?:rank|tp|node)[\"'_ =:#-]{0,4}([0-9]{1,3})\b[^0-9\n]{1,40}"
        r"([0-9][0-9,_]{0,20}(?:\.0+)?)(?:\s|$|[\"'}])"
    )
    for line in reading.text.splitlines()[:_MOST_LINES]:
        if (match := named.search(line[:500])) and (rows := count(match[2])) is not None:
            yield int(match[1]), rows
    own = re.search(r"(?i)(?:rank|tp)[-_ ]?([0-9]{1,3})$", reading.node or "")
    if own and re.fullmatch(r"\s*[0-9][0-9,_]{0,20}\s*", reading.text):
        yield int(own[1]), count(reading.text) or 0


def _counts_of_json(value: Any) -> Iterator[tuple[int, int]]:
    if isinstance(value, list):
        for place, one in enumerate(value):
            if isinstance(one, dict):
                rank = count(one.get("rank"))
                rows = next((count(v) for k, v in one.items() if "read" in str(k)), None)
                if rank is not None and rows is not None:
                    yield rank, rows
            elif (rows := count(one)) is not None:
                yield place, rows
    elif isinstance(value, dict):
        for key, one in value.items():
            rank_name = re.search(r"([0-9]{1,3})$", str(key))
            if rank_name and (rows := count(one)) is not None:
                yield int(rank_name[1]), rows
            elif isinstance(one, dict | list):
                yield from _counts_of_json(one)


_FIGURE = r"[0-9][0-9,_]{0,24}(?:\.[0-9]{1,9})?"
_SIZE = rf"({_FIGURE})\s?([kKMGT]i?B|B|bytes)?\b"
_DONE = re.compile(rf"(?i)\b(?:bytes|done|written|packed|size)\w{{0,12}}[\"']?\s?[=:]\s?{_SIZE}")
_TIME = re.compile(rf"(?i)\b(?:t|s|sec\w*|time\w*|elapsed\w*)[\"']?\s?[=:]\s?({_FIGURE})\s?s?\b")
_COPIED = re.compile(rf"({_FIGURE}) bytes\b.{{0,80}}?\b({_FIGURE}) s\b")
_UNITS = re.compile(rf"({_FIGURE})\s?([kKMGT]i?B)\b(?!/s).{{0,40}}?\b({_FIGURE})\s?s\b")


def _progress(reading: Reading) -> Iterable[Fact]:
    points: list[tuple[float, int]] = []
    bare: list[tuple[float, float]] = []
    for line in reading.text.splitlines()[:_MOST_LINES]:
        line = line[:500]
        if (point := _point(line)) is not None:
            points.append(point)
        elif re.fullmatch(rf"\s*{_FIGURE}[\s,;]+{_FIGURE}\s*", line):
            one, other = (number(figure) for figure in re.findall(_FIGURE, line))
            if one is not None and other is not None:
                bare.append((one, other))
    points += [(s, int(b)) for s, b in _ordered(bare, f"{reading.note} {reading.label}")]
    points = [point for n, point in enumerate(points) if n == 0 or point[0] > points[n - 1][0]]
    if len(points) < 2:
        raise UnusableOutput("no two lines with bytes and seconds")
    yield PackProgress(points=tuple(points))


def _point(line: str) -> tuple[float, int] | None:
    if (done := _DONE.search(line)) and (at := _TIME.search(line)):
        size, second = _bytes(done[1], done[2]), number(at[1])
    elif copied := _COPIED.search(line):
        size, second = _bytes(copied[1], ""), number(copied[2])
    elif united := _UNITS.search(line):
        size, second = _bytes(united[1], united[2]), number(united[3])
    else:
        return None
    return None if size is None or second is None else (second, size)


def _bytes(figure: str, unit: str | None) -> int | None:
    plain = "" if unit in (None, "bytes") else unit
    figure = figure.replace(",", "").replace("_", "")
    return parse_bytes(f"{figure}{plain}") if len(figure) < 25 else None


def _ordered(bare: list[tuple[float, float]], words: str) -> list[tuple[float, float]]:
    """(seconds, bytes) of two columns: in the order that is told, else the larger is bytes."""
    if not bare:
        return []
    told = re.search(r"(?i)\b(bytes|done)\b.{0,20}\b(?:s|t|sec\w*|time)\b", words)
    swapped = re.search(r"(?i)\b(?:s|t|sec\w*|time)\b.{0,20}\b(?:bytes|done)\b", words)
    bytes_first = bool(told) if bool(told) != bool(swapped) else bare[-1][0] > bare[-1][1]
    return [(other, one) if bytes_first else (one, other) for one, other in bare]


_FILE = re.compile(r"[\w./-]{1,300}\.(?:bin|shard|safetensors|npy|dat)(?:\.\w{1,12})?")


def _targets(reading: Reading) -> Iterable[Fact]:
    found = []
    for line in reading.text.splitlines()[:_MOST_LINES]:
        named = re.search(
            r"[\w./-]{1,300}\.(?:bin|shard|safetensors|npy|dat)(?:\.\w{1,12})?", line[:1000]
        )
        if named is None:
            continue
        rest = line[named.end() : named.end() + 200]
        listed = re.match(r"\s*-[rwx-]{9}", line)
        there = re.search(r"(?i)\b(?:exists|present|found|there)\b", rest)
        gone = re.search(
            r"(?i)\b(?:does not exist|not exist|absent|missing|no such file|not found|"
            r"not there|free)\b",
            rest,
        )
        if not (there or gone or listed):
            continue
        size = re.search(rf"(?i)\b(?:size|bytes)\w*\s?[=:]\s?{_SIZE}", rest)
        found.append(
            Target(
                name=named[0],
                exists=not gone,
                size_bytes=_bytes(size[1], size[2]) if size else None,
                vouched=bool(re.search(r"(?i)\b(?:valid|verified|kept?|skip\w*)\b", rest)),
            )
        )
    if not found:
        raise UnusableOutput("no file of which it is told whether it exists")
    yield PackTargets(targets=tuple(found))


def _token_ids(reading: Reading) -> Iterable[Fact]:
    words = [word for word in re.split(r"[\s,;\[\](){}|=:]+", reading.text) if word]
    ids = [word for word in words if re.fullmatch(r"-?[0-9]{1,12}", word)]
    if not ids or len(ids) * 2 < len(words):
        raise UnusableOutput("no list of token ids")
    said = f"{reading.what} {reading.note} {reading.label}"
    told = re.search(r"(?i)\bvocab\w*(?:[ _]size)?\s?[=:]?\s?([0-9]{2,9})\b", said)
    yield TokenIds(ids=tuple(int(one) for one in ids), vocabulary=int(told[1]) if told else None)


_SHARD = r"(?:engram|\bL[0-9]+\.r[0-9]+)"
READERS: tuple[Reader, ...] = (
    Reader("packing.sizes", (ShardSizes,), _sizes, commands=(
        r"stat\b(?!.* (?:-f|--file-system)\b).*%s.*", rf"stat\b(?!.* -\w*f\b)(?!.*%).*{_SHARD}.*",
        rf"ls (?=.*-\w*[ls]).*{_SHARD}.*", rf"du\b.*{_SHARD}.*",
        rf"find\b(?=.*{_SHARD}).*-printf.*%s.*",
    )),
    Reader("packing.manifest", (PackManifest,), _manifest,
        commands=(r"(?:cat|jq|python3? -m json\.tool)\b.*manifest[^/]*\.json.*",),
        paths=(r"(?:.*/)?manifest[^/]*\.json",),
        whats=(r"(?!.*\b(?:checkpoint|image|docker|oci|kubernetes)\b).*\bmanifest\b.*",),
    ),
    Reader("packing.self_test", (SelfTest,), _self_test,
        whats=(r"(?:engram |row |rows |pack(?:ed|er)? |start )*self[- ]?test\b.*",)),
    Reader("packing.reads", (RowReads,), _reads,
        whats=(r"(?:engram )?row[_ -]?reads\b.*", r"(?:engram )?rows read\b.*",
               r"reads per rank\b.*")),
    Reader("packing.progress", (PackProgress,), _progress,
        whats=(r"pack(?:er|ing)? (?:progress|log|output|samples)\b.*",
               r"progress of (?:the )?pack\w*.*")),
    Reader("packing.target", (PackTargets,), _targets,
        whats=(r"(?:pack(?:er|ing)? |existing )?(?:target|output|destination)s? "
               r"(?:file )?(?:before|at) (?:the )?start\b.*",
               r"(?:pack(?:er|ing)?) (?:target|destination)s?\b.*")),
    Reader("packing.token_ids", (TokenIds,), _token_ids,
        whats=(r".*\b(?:token|input)[_ ]ids?\b.*",)),
)  # fmt: skip
"""In the order in which they are tried."""
ASKS: tuple[Ask, ...] = ()
