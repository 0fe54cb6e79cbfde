"""Manifests of packed Engram rows: ours, and the shorter ones that other packers write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparkserve.facts.jsontext import count, mapping, words
from sparkserve.facts.reader import Fact
from sparkserve.model.base import Model

_NAMES = ("packed_file", "file", "name", "path", "filename")
_SIZES = ("bytes", "size_bytes", "size", "file_bytes")
_ROW_BYTES = ("row_bytes", "bytes_per_row", "row_size", "row_size_bytes")
_ALLOCATED = ("allocated_bytes", "allocated", "alloc_bytes", "disk_bytes")
_LISTS = ("layers", "files", "shards", "tables")


class PackedFile(Model):
    """What a manifest says of one file; None = nothing."""

    name: str
    size_bytes: int | None = None
    rows: int | None = None
    row_bytes: int | None = None
    header_bytes: int = 0
    sparse: bool | None = None
    """Whether holes are meant."""
    allocated_bytes: int | None = None

    @property
    def expected_bytes(self) -> int | None:
        """How long the file must be; None where the manifest does not tell."""
        if self.size_bytes is not None:
            return self.size_bytes
        if self.rows is None or self.row_bytes is None:
            return None
        return self.header_bytes + self.rows * self.row_bytes


class PackedSpan(Model):
    """Rows of one layer's table that a rank holds."""

    layer: int
    start: int
    end: int
    total_rows: int | None = None


class PackManifest(Fact):
    """One manifest; None = it does not say."""

    tp: int | None = None
    rank: int | None = None
    layout: str | None = None
    """As written; ``checks.packing`` knows which words mean the same."""
    revision: str | None = None
    files: tuple[PackedFile, ...] = ()
    spans: tuple[PackedSpan, ...] = ()


def manifests_of(values: Iterable[Any]) -> list[PackManifest]:
    """Every manifest among JSON values."""
    found = []
    for value in values:
        tables = value if isinstance(value, list) else [value]
        found += [made for one in tables if (made := _manifest(mapping(one))) is not None]
    return found


def _manifest(data: Mapping[str, Any]) -> PackManifest | None:
    inner = mapping(data.get("engram")) or mapping(data.get("manifest"))
    both = {**inner, **data}
    files = tuple(_files(both))
    made = PackManifest(
        tp=_first(both, ("tp", "tp_size", "world_size", "world", "ranks", "num_ranks")),
        rank=_first(both, ("rank", "tp_rank", "node_rank")),
        layout=words(both.get("layout") or both.get("engram_layout")) or None,
        revision=words(both.get("revision") or both.get("model_revision")) or None,
        files=files,
        spans=tuple(_spans(both)),
    )
    return None if made == PackManifest() else made


def _files(data: Mapping[str, Any]) -> Iterator[PackedFile]:
    for key, entry in _entries(data):
        name = next((words(entry[n]) for n in _NAMES if words(entry.get(n))), key)
        file = PackedFile(
            name=name,
            size_bytes=_first(entry, _SIZES),
            rows=_first(entry, ("rows", "num_rows", "n_rows")),
            row_bytes=_first(entry, _ROW_BYTES),
            header_bytes=_first(entry, ("header_bytes", "header")) or 0,
            sparse=entry["sparse"] if isinstance(entry.get("sparse"), bool) else None,
            allocated_bytes=_first(entry, _ALLOCATED),
        )
        if name and file.expected_bytes is not None:
            yield file


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name or empty, entry) of files, be they a list, a table by name, or the whole object."""
    held = next((data[key] for key in _LISTS if isinstance(data.get(key), dict | list)), data)
    if isinstance(held, list):
        yield from (("", one) for one in held if isinstance(one, Mapping))
    elif isinstance(held, Mapping):
        yield from ((str(key), one) for key, one in held.items() if isinstance(one, Mapping))


def _spans(data: Mapping[str, Any]) -> Iterator[PackedSpan]:
    for key, entry in _entries(data):
        layer = _first(entry, ("layer", "layer_id"))
        if layer is None:
            layer = count(key)
        if layer is None:
            continue
        total = _first(entry, ("total_rows", "table_rows"))
        for start, end in _ranges(entry):
            yield PackedSpan(layer=layer, start=start, end=end, total_rows=total)


def _ranges(entry: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    listed = entry.get("ranges", entry.get("row_ranges"))
    if isinstance(listed, list):
        for one in listed:
            pair = [one.get("start"), one.get("end")] if isinstance(one, Mapping) else one
            if isinstance(pair, list) and len(pair) == 2:
                start, end = count(pair[0]), count(pair[1])
                if start is not None and end is not None:
                    yield start, end
        return
    start, end = _first(entry, ("row_start",)), _first(entry, ("row_end",))
    if start is not None and end is not None:
        yield start, end


def _first(data: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    return next((found for key in keys if (found := count(data.get(key))) is not None), None)
