"""Whether packed Engram shards are whole, of this split and of this layout.

Judges listings, manifests and progress as people paste them; ``checks.shards`` judges the shards
that a node holds for a profile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene, evidence
from sparkserve.engram.balance import WARN_RATIO, imbalance
from sparkserve.engram.constants import TOKENIZER_SIZE
from sparkserve.engram.hashing import PADDING_TOKEN
from sparkserve.engram.pace import SLOW_BYTES_PER_S, Pace
from sparkserve.facts.environment import Environment
from sparkserve.facts.file_sizes import FileSize
from sparkserve.facts.pack_manifest import PackedFile, PackManifest
from sparkserve.facts.packing import (
    PackProgress,
    PackTargets,
    RowReads,
    SelfTest,
    ShardSizes,
    TokenIds,
)
from sparkserve.model.reading import Reading

_LIVE = "on a node ENGRAM.PACKED, ENGRAM.IDENTITY and ENGRAM.LAYOUT read the same from the files"
_HEADER_BYTES = 4096
"""Bytes before the first row in our own format; other packers write none."""
_LEAST_ROWS = 1000
"""A busiest rank with fewer reads has answered a few short prompts only [proposal]."""
_CONTIGUOUS = ("contiguous", "columns", "column", "block", "blocked", "consecutive")
_EQUAL = ("equal", "rows", "even", "row-blocks")
_STRIDED = ("strided", "stride", "interleaved", "striped", "round-robin", "cyclic")


def _fail(node: str | None, observed: str, expected: str, *readings: Reading) -> Judgement:
    return Judgement(
        node, "fail", observed=observed, expected=expected, evidence=evidence(readings)
    )


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def shard_fault(file: FileSize, listed: PackedFile) -> str | None:
    """What a file lacks of what its manifest lists; None where nothing does.

    Notes: real packs may be sparse on purpose, so holes count only where the manifest declares
    none, or knows how much the file took.
    """
    expected = listed.expected_bytes
    if file.size_bytes is not None and expected is not None:
        plain = {expected}
        if listed.size_bytes is None and not listed.header_bytes:
            plain.add(expected + _HEADER_BYTES)
        if file.size_bytes not in plain:
            return _length(file.size_bytes, expected, listed.row_bytes)
    if file.allocated_bytes is None:
        return None
    if listed.allocated_bytes is None and listed.sparse:
        return None
    whole = file.size_bytes if file.size_bytes is not None else (expected or 0)
    least = whole if listed.allocated_bytes is None else min(whole, listed.allocated_bytes)
    if file.allocated_bytes >= least:
        return None
    return f"right size, but only {_gb(file.allocated_bytes)} of {_gb(least)} are allocated (holes)"


def _length(size_bytes: int, expected_bytes: int, row_bytes: int | None) -> str:
    rows, rest = divmod(abs(expected_bytes - size_bytes), row_bytes or 1)
    parts = [f"{rows:,} row{'s' if rows != 1 else ''}"] if rows and row_bytes else []
    rest = rest if row_bytes else abs(expected_bytes - size_bytes)
    parts += [f"{rest:,} bytes"] if rest else []
    end = "short" if size_bytes < expected_bytes else "too long"
    return f"{' and '.join(parts)} {end}: {size_bytes:,} bytes, expected {expected_bytes:,}"


def _listed(scene: Scene, node: str | None) -> dict[str, PackedFile]:
    """Files that the node's manifests list, by name; those without a place serve all nodes."""
    found: dict[str, PackedFile] = {}
    for place, manifest, _ in scene.seen(PackManifest):
        if place is None or node is None or scene.same_place(place, node):
            found |= {_base(file.name): file for file in manifest.files}
    return found


def _whole(scene: Scene) -> Iterator[Judgement]:
    for node, fact, reading in scene.seen(ShardSizes):
        listed = _listed(scene, node)
        pairs = [(f, listed[_base(f.name)]) for f in fact.files if _base(f.name) in listed]
        faults = [
            f"{_base(file.name)} {fault}"
            for file, told in pairs
            if (fault := shard_fault(file, told)) is not None
        ]
        there = {_base(file.name) for file in fact.files}
        if pairs and fact.whole_folder:
            faults += [f"{name} missing" for name in listed if name not in there]
        if faults:
            yield _fail(node, "; ".join(faults[:8]), "every byte that the manifest lists", reading)
        elif pairs:
            yield passed(node, f"{len(pairs)} shards as long as their manifest says")


def _rank_told(scene: Scene, node: str | None) -> int | None:
    """Rank that somebody assigned to a place; a name alone is a guess unless it says rank."""
    if node is None:
        return None
    given = (scene.wanted.rank_of or {}).get(node)
    if given is not None:
        return given
    if scene.fleet is not None or re.search(r"(?i)rank|tp[-_ ]?\d", node):
        return scene.rank_of(node)
    return None


def _same_revision(one: str, other: str) -> bool:
    """Whether two revisions are one; a short hash stands for the long one that begins so."""
    short, long = sorted((one.lower(), other.lower()), key=len)
    return short == long or (len(short) >= 7 and long.startswith(short))


def _identity(scene: Scene) -> Iterator[Judgement]:
    wanted = scene.wanted
    seen = [s for s in scene.seen(PackManifest) if (s[1].tp, s[1].rank) != (None, None)]
    ranks = Counter(
        (m.tp, m.rank) for _, m in {(node, m) for node, m, _ in seen} if m.rank is not None
    )
    sizes = {m.tp for _, m, _ in seen if m.tp is not None}
    for node, manifest, reading in seen:
        tp, rank, told = manifest.tp, manifest.rank, _rank_told(scene, node)
        wrong = []
        if None not in (tp, wanted.tp) and tp != wanted.tp:
            wrong.append(f"packed for tp {tp}, profile wants {wanted.tp}")
        elif wanted.tp is None and len(sizes) > 1:
            wrong.append(f"packed for tp {tp} beside tp {_others(sizes, tp)}")
        if None not in (rank, told) and rank != told:
            wrong.append(f"packed for rank {rank}, this is rank {told}")
        elif rank is not None and ranks[tp, rank] > 1:
            wrong.append(f"rank {rank} lies on {ranks[tp, rank]} nodes")
        if rank is not None and tp is not None and rank >= tp:
            wrong.append(f"rank {rank} of {tp}")
        if (
            manifest.revision
            and wanted.revision
            and not _same_revision(manifest.revision, wanted.revision)
        ):
            wrong.append(f"of revision {manifest.revision}, profile wants {wanted.revision}")
        compared = wanted.tp is not None or told is not None or len(seen) > 1
        if wrong:
            expected = (
                f"tp {wanted.tp or '-'}, rank {'-' if told is None else told}, "
                f"revision {wanted.revision or '-'}"
            )
            yield _fail(node, "; ".join(wrong), expected, reading)
        elif compared:
            yield passed(node, f"rank {rank} of {tp}, revision {manifest.revision or 'not told'}")
    yield from _coverage(scene)


def _others(sizes: set[int], tp: int | None) -> str:
    return ", ".join(str(one) for one in sorted(sizes - {tp}))


def _coverage(scene: Scene) -> Iterator[Judgement]:
    """Whether the ranges of all ranks together are the whole table, each row once."""
    manifests = {(m.tp, m.rank): m for _, m, _ in scene.seen(PackManifest)}
    sizes = {tp for tp, _ in manifests}
    if len(sizes) != 1 or len(manifests) != next(iter(sizes)) or len(manifests) < 2:
        return
    spans = [span for manifest in manifests.values() for span in manifest.spans]
    faults = []
    for layer in sorted({span.layer for span in spans}):
        own = sorted((s.start, s.end) for s in spans if s.layer == layer)
        total = next((s.total_rows for s in spans if s.layer == layer and s.total_rows), None)
        edges = [0, *(end for _, end in own)]
        for (start, _), before in zip(own, edges, strict=False):
            if start != before:
                word = "missing" if start > before else "packed twice"
                faults.append(
                    f"layer {layer}: rows {min(before, start)} to {max(before, start)} {word}"
                )
        if total is not None and edges[-1] != total:
            faults.append(f"layer {layer}: rows end at {edges[-1]} of {total}")
    if faults:
        readings = [reading for _, _, reading in scene.seen(PackManifest)]
        yield _fail(None, "; ".join(faults[:8]), "every row on exactly one rank", *readings)


def same_layout(one: str, other: str) -> bool:
    """Whether two names of layouts mean the same; ``contiguous`` may mean either cut in a row."""
    kinds = [_kinds(one), _kinds(other)]
    return bool(kinds[0] & kinds[1])


def _kinds(name: str) -> frozenset[str]:
    name = name.strip().lower().replace("_", "-")
    if name in _STRIDED:
        return frozenset(("strided",))
    if name == "contiguous":
        return frozenset(("columns", "equal"))
    if name in _CONTIGUOUS:
        return frozenset(("columns",))
    return frozenset(("equal",)) if name in _EQUAL else frozenset((name,))


def _runtime_layouts(scene: Scene) -> dict[str, str]:
    """Layout -> who says that it is used."""
    found = {}
    if scene.wanted.layout:
        found[scene.wanted.layout] = "the profile"
    for _, env, _ in scene.seen(Environment):
        found |= {
            value: name
            for name, value in env.variables.items()
            if re.fullmatch(r"(?:\w*_)?ENGRAM\w*_LAYOUT", name) and value.strip()
        }
    return found


def _layout(scene: Scene) -> Iterator[Judgement]:
    for node, manifest, reading in scene.seen(PackManifest):
        used = _runtime_layouts(scene) if manifest.layout else {}
        for layout, who in used.items():
            if same_layout(manifest.layout or "", layout):
                yield passed(node, f"layout {manifest.layout}")
            else:
                observed = f"packed {manifest.layout}, served {layout} by {who}"
                yield _fail(node, observed, "one layout for packing and serving", reading)
    for node, test, reading in scene.seen(SelfTest):
        wrong = [line for line in test.lines if line.mismatches]
        told = "; ".join(
            f"layer {'?' if line.layer is None else line.layer}: {line.mismatches} of "
            f"{'?' if line.rows is None else line.rows} rows differ from the checkpoint"
            for line in wrong
        )
        if wrong:
            yield _fail(node, f"self-test: {told}", "0 mismatches", reading)
        else:
            yield passed(node, f"self-test: no mismatch in {len(test.lines)} layers")


def _balance(scene: Scene) -> Iterator[Judgement]:
    seen = scene.seen(RowReads)
    rows = {one.rank: one.rows for _, fact, _ in seen for one in fact.ranks}
    if len(rows) < 2 or max(rows.values()) < _LEAST_ROWS:
        return
    ratio = imbalance(list(rows.values()))
    told = ", ".join(f"rank {rank} {count:,}" for rank, count in sorted(rows.items()))
    observed = f"{told} rows read, ratio {ratio:.1f}"
    if ratio > WARN_RATIO:
        readings = [reading for _, _, reading in seen]
        yield _fail(None, observed, f"a ratio of at most {WARN_RATIO:.0f}", *readings)
    else:
        yield passed(None, observed)


def slowest_bytes_per_s(points: Sequence[tuple[float, int]]) -> float | None:
    """Rate of a pack that stayed below 50 MB/s for 30 s; None for one that did not.

    points: (seconds, bytes so far), times ascending.

    Returns:
        The rate of the whole where that is slow, else of the slow stretch.
    """
    pace, slow = Pace(), None
    for second, done in points:
        pace.step(second, done)
        slow = slow or pace.slow()
    if slow is None:
        return None
    (start, first), (end, last) = points[0], points[-1]
    overall = (last - first) / (end - start)
    return overall if overall < SLOW_BYTES_PER_S else slow


def _rewrite(scene: Scene) -> Iterator[Judgement]:
    for node, fact, reading in scene.seen(PackTargets):
        standing = [one for one in fact.targets if one.exists and not one.vouched]
        for target in standing[:8]:
            size = f", {target.size_bytes:,} bytes" if target.size_bytes is not None else ""
            yield _fail(
                node,
                f"{target.name} exists before the start{size}: it would be rewritten in place",
                "a new temporary file that is renamed once it is whole (temp + rename)",
                reading,
            )
        if not standing:
            yield passed(node, "no shard stands where one is to be written")
    for node, progress, reading in scene.seen(PackProgress):
        slow = slowest_bytes_per_s(progress.points)
        seconds = progress.points[-1][0] - progress.points[0][0]
        if slow is not None:
            observed = f"{slow / 1e6:.1f} MB/s over {seconds:.0f} s"
            expected = f"at least {SLOW_BYTES_PER_S / 1e6:.0f} MB/s"
            yield _fail(node, observed, expected, reading)
        elif seconds >= 30:
            done = progress.points[-1][1] - progress.points[0][1]
            yield passed(node, f"{done / seconds / 1e6:.0f} MB/s")


def _tokens(scene: Scene) -> Iterator[Judgement]:
    for node, fact, reading in scene.seen(TokenIds):
        size = fact.vocabulary or TOKENIZER_SIZE
        padding = sum(one == PADDING_TOKEN for one in fact.ids)
        outside = [one for one in fact.ids if one != PADDING_TOKEN and not 0 <= one < size]
        if outside:
            listed = ", ".join(str(one) for one in outside[:5])
            yield _fail(node, f"{len(outside)} of {len(fact.ids)} ids are no tokens: {listed}",
                        f"0 to {size - 1}, or -1 for padding", reading)  # fmt: skip
        if padding:
            yield Judgement(
                node, "fail",
                observed=f"{padding} of {len(fact.ids)} ids are -1: padding; each becomes the pad "
                "token and breaks the n-gram window, none is used as a negative index",
                expected="padding mapped before hashing, never an index from the map's end",
                evidence=evidence([reading]), severity="warning", verdict="VALUES",
            )  # fmt: skip
        if not padding and not outside:
            yield passed(node, f"{len(fact.ids)} ids below {size}")


CHECKS: tuple[Check, ...] = (
    Check(
        "PACK.WHOLE", "PCK_SHORT_SHARD", "packed shards are as long as their manifest says",
        ("pack", "doctor", "launch"), "error", "hardware", (ShardSizes, PackManifest), _whole,
        why="an interrupted pack or copy leaves a short file, or one with holes that read as zeros",
        fix="sparkserve pack --replace  # writes beside, verifies, renames",
        symptom="serves at first, then wrong vectors or EIO on rare n-grams",
        text_only=_LIVE,
    ),
    Check(
        "PACK.IDENTITY", "PCK_WORLD_OR_REVISION", "packed shards are of this rank and model",
        ("pack", "doctor", "launch"), "error", "hardware", (PackManifest,), _identity,
        why="rows of another split, rank or revision are valid vectors of the wrong n-grams",
        fix="sparkserve pack  # for the profile's ranks and revision",
        symptom="garbage or index errors after the number of nodes or the checkpoint changed",
        text_only=_LIVE,
    ),
    Check(
        "PACK.LAYOUT", "PCK_LAYOUT_FLAG", "shards are read in the layout they were packed in",
        ("pack", "launch"), "error", "hardware", (PackManifest, SelfTest), _layout,
        why="valid rows of the wrong columns: plausible text of lower quality, nothing crashes",
        fix="serve with the layout of the manifest, or sparkserve pack --replace in the other one",
        symptom="fluent text, worse answers, no error anywhere",
        text_only=_LIVE,
    ),
    Check(
        "PACK.BALANCE", "PCK_COLUMN_IMBALANCE", "ranks read about equally many Engram rows",
        ("watch", "bench"), "warning", "engine", (RowReads,), _balance,
        why="every lookup ends in an exchange between the ranks, so all wait for the busiest one",
        fix="sparkserve pack --layout strided, then set engram.layout = strided",
        symptom="prefill is slow and half of it is AllReduce, while the fabric tests at full speed",
        text_only="a serving run counts its reads: `sparkserve status` judges them",
    ),
    Check(
        "PACK.IN_PLACE", "PCK_REWRITE_IN_PLACE", "shards are written beside and renamed",
        ("pack",), "error", "hardware", (PackTargets, PackProgress), _rewrite,
        why="a shard that is written over is read, changed and written back page by page, and "
        "is neither the old nor the new one if that ends early",
        fix="sparkserve pack --replace  # what stands there stays until the new one is whole",
        symptom="packing again takes an hour instead of minutes at 6 to 17 MB/s",
        text_only="`sparkserve pack` refuses and measures by itself while it runs",
    ),
    Check(
        "PACK.TOKENS", "PCK_TOKEN_RANGE", "token ids are in the range of the token map",
        ("pack", "launch"), "error", "engine", (TokenIds,), _tokens,
        why="-1 of a padded batch reads from the end of a map instead of failing, and a number "
        "beyond it fails",
        fix="map padding to the pad token and check 0 <= id < vocabulary before hashing",
        symptom="wrong n-gram rows now and then with CUDA graphs and padded batches",
        text_only="ids are inside the engine; the reader of rows checks them there",
    ),
)  # fmt: skip
