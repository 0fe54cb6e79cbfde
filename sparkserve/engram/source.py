"""Where Engram tables come from: a checkpoint in a folder or behind http(s).

The two tensors of a table, weights [rows, dim] F8_E4M3 and scales [rows, dim / 32] F8_E8M0, are
found by name, judged by the safetensors header, and then read by byte range.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sparkserve.engram.config import EngramConfig, RowCountError
from sparkserve.engram.direct_file import Arena
from sparkserve.engram.pack_error import PackError
from sparkserve.errors import ConfigError
from sparkserve.model.pack import PackCode

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SMALL_LIMIT_BYTES = 256 << 20
_HEADER_LIMIT_BYTES = 100_000_000
"""The safetensors format's own limit."""
_LENGTH = struct.Struct("<Q")
_PREFIXES = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")
# Names that torch gives the two types, besides those of the safetensors format.
_WEIGHT_TYPES = ("F8_E4M3", "F8_E4M3FN", "float8_e4m3fn")
_SCALE_TYPES = ("F8_E8M0", "F8_E8M0FNU", "float8_e8m0fnu")


class SourceFile(Protocol):
    """One file of a checkpoint, open for reading by several threads."""

    name: str
    """As the folder was asked for it."""
    place: str
    """Path or URL, for messages."""
    size_bytes: int
    version: str
    """Changes with the content: ``mtime:...`` or ``etag:...``; empty = the source says nothing."""

    def read(self, offset_bytes: int, length_bytes: int, arena: Arena) -> memoryview:
        """Exactly the bytes asked for.

        Raises:
            PackError: too few bytes, an error, or the file changed.
        """

    def check_unchanged(self) -> None:
        """Make sure that all that was read belongs to one version.

        Raises:
            PackError: the file changed since it was opened.
        """

    def close(self) -> None:
        """Give it back."""


class Folder(Protocol):
    """The folder of a checkpoint."""

    place: str
    parallel_reads: int
    """How many chunks to read at a time."""
    align_bytes: int
    """Arenas need room for twice this per read."""

    def read_small(self, name: str, limit_bytes: int) -> bytes | None:
        """A whole file; None where there is none.

        Raises:
            PackError: it cannot be read, or is longer than the limit.
        """

    def open(self, name: str) -> SourceFile:
        """Open a file.

        Raises:
            PackError: there is none, or it cannot be read.
        """

    def close(self) -> None:
        """Give back what is open."""


@dataclass(frozen=True)
class TableSource:
    """One layer's table in the checkpoint."""

    layer: int
    file: SourceFile
    rows: int
    dim: int
    weight_offset: int
    """Byte of the first weight of row 0."""
    scale_offset: int
    header_sha256: str
    """Digest of the file's safetensors header, length field included."""

    def read(self, start: int, end: int, arena: Arena) -> tuple[memoryview, memoryview]:
        """Weights and scales of rows ``start <= row < end``.

        Raises:
            PackError: the source failed.
        """
        scale_bytes = self.dim // 32
        count = end - start
        weights = self.file.read(self.weight_offset + start * self.dim, count * self.dim, arena)
        scales = self.file.read(self.scale_offset + start * scale_bytes, count * scale_bytes, arena)
        return weights, scales


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose config.json and index have been read."""

    folder: Folder
    config: EngramConfig
    config_sha256: str
    index_sha256: str | None
    """None = one file without an index."""
    shards: Mapping[str, str] | None
    """Tensor name -> file name; None as above."""

    @classmethod
    def open(cls, folder: Folder) -> Checkpoint:
        """Read what every layer needs.

        Raises:
            PackError: config.json or the index is missing or malformed.
        """
        text = folder.read_small(CONFIG, _SMALL_LIMIT_BYTES)
        if text is None:
            raise PackError(
                PackCode.SOURCE_MISSING, f"no {CONFIG} here, so no checkpoint", path=folder.place
            )
        index = folder.read_small(INDEX, _SMALL_LIMIT_BYTES)
        return cls(
            folder,
            _engram_config(_json_object(text, folder, CONFIG), folder),
            hashlib.sha256(text).hexdigest(),
            None if index is None else hashlib.sha256(index).hexdigest(),
            None if index is None else _weight_map(index, folder),
        )

    def table(self, layer: int) -> TableSource:
        """Find and judge one layer's table; the caller closes its file.

        Raises:
            PackError: missing, split over files, of another type or shape, or truncated.
        """
        if self.shards is None:
            file = self.folder.open(SINGLE)
        else:
            weight, scale = self._names(layer, self.shards)
            if self.shards[weight] != self.shards[scale]:
                raise PackError(
                    PackCode.TENSOR_SPLIT,
                    f"{weight} lies in {self.shards[weight]} but {scale} in {self.shards[scale]}, "
                    "expected one file",
                    path=f"{self.folder.place}/{INDEX}",
                )
            file = self.folder.open(self.shards[weight])
        try:
            return self._table_in(layer, file)
        except BaseException:
            file.close()
            raise

    def _table_in(self, layer: int, file: SourceFile) -> TableSource:
        head, data_start = read_safetensors_header(file)
        tensors = _json_object(head, file, "safetensors header")
        weight, scale = self._names(layer, tensors)
        rows = self.config.num_embeddings[self.config.layer_ids.index(layer)]
        dim = self.config.head_dim
        judge = _TensorJudge(file, tensors, data_start)
        return TableSource(
            layer,
            file,
            rows,
            dim,
            judge.offset(weight, _WEIGHT_TYPES, (rows, dim)),
            judge.offset(scale, _SCALE_TYPES, (rows, dim // 32)),
            hashlib.sha256(_LENGTH.pack(len(head)) + head).hexdigest(),
        )

    def _names(self, layer: int, tensors: Mapping[str, Any]) -> tuple[str, str]:
        number = self.config.layer_ids.index(layer)
        stems = (f"layers.{layer}.engram.embed", f"engrams.{number}.embed")
        for stem in (prefix + stem for stem in stems for prefix in _PREFIXES):
            weight, scale = f"{stem}.weight", f"{stem}.scale"
            if weight in tensors and scale in tensors:
                return weight, scale
            if weight in tensors or scale in tensors:
                lone, lost = (weight, scale) if weight in tensors else (scale, weight)
                raise PackError(
                    PackCode.TENSOR_MISSING,
                    f"{lone} is there, but {lost} is not",
                    path=self.folder.place,
                )
        raise PackError(
            PackCode.TENSOR_MISSING,
            f"no Engram table for layer {layer}: no tensor is called {stems[0]}.weight, with or "
            "without a prefix",
            path=self.folder.place,
            hint="the source must be the original checkpoint, not one without its Engram tables",
        )


@dataclass(frozen=True)
class _TensorJudge:
    """Compares a safetensors header's entries with what is expected of them."""

    file: SourceFile
    tensors: Mapping[str, Any]
    data_start: int

    def offset(self, name: str, types: tuple[str, ...], shape: tuple[int, int]) -> int:
        """Byte of the tensor in the file.

        Raises:
            PackError: another type, shape or extent, or the file ends before it.
        """
        entry = self.tensors[name]
        if not isinstance(entry, dict):
            raise self._error(PackCode.SOURCE_HEADER, f"{name} is {entry!r}, expected an object")
        if entry.get("dtype") not in types:
            raise self._error(
                PackCode.DTYPE, f"{name} has type {entry.get('dtype')}, expected {types[0]}"
            )
        if entry.get("shape") != list(shape):
            raise self._error(
                PackCode.SHAPE, f"{name} has shape {entry.get('shape')}, expected {list(shape)}"
            )
        match entry.get("data_offsets"):
            case [int(start), int(end)] if 0 <= start <= end:
                pass
            case other:
                raise self._error(PackCode.SOURCE_HEADER, f"{name} has data_offsets {other}")
        if end - start != shape[0] * shape[1]:
            raise self._error(
                PackCode.SHAPE, f"{name} takes {end - start} bytes, expected {shape[0] * shape[1]}"
            )
        if self.data_start + end > self.file.size_bytes:
            raise PackError(
                PackCode.SHORT_READ,
                f"the file ends here, but {name} goes on to byte {self.data_start + end}",
                path=self.file.place,
                offset_bytes=self.file.size_bytes,
                hint="the file is incomplete: download it again",
            )
        return self.data_start + start

    def _error(self, code: PackCode, message: str) -> PackError:
        return PackError(code, message, path=self.file.place)


def read_safetensors_header(file: SourceFile) -> tuple[bytes, int]:
    """The JSON text of a safetensors file, and the byte where its data begins.

    Raises:
        PackError: truncated, or no safetensors file.
    """

    def bad(message: str) -> PackError:
        return PackError(PackCode.SOURCE_HEADER, message, path=file.place, offset_bytes=0)

    if file.size_bytes < _LENGTH.size:
        raise bad(f"{file.size_bytes} bytes are no safetensors file")
    (length,) = _LENGTH.unpack(file.read(0, _LENGTH.size, Arena(1 << 16)))
    if length > min(_HEADER_LIMIT_BYTES, file.size_bytes - _LENGTH.size):
        raise bad(f"the safetensors header claims {length} bytes, the file has {file.size_bytes}")
    arena = Arena(length + (1 << 16))
    return bytes(file.read(_LENGTH.size, length, arena)), _LENGTH.size + length


def _engram_config(config: Mapping[str, Any], folder: Folder) -> EngramConfig:
    try:
        return EngramConfig.from_config(config)
    except RowCountError as error:
        raise PackError(PackCode.PRIMES, error.message, path=folder.place) from error
    except ConfigError as error:
        raise PackError(PackCode.SOURCE_HEADER, error.message, path=folder.place) from error


def _weight_map(index: bytes, folder: Folder) -> Mapping[str, str]:
    shards = _json_object(index, folder, INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
        raise PackError(
            PackCode.SOURCE_HEADER, "no weight_map of file names", path=f"{folder.place}/{INDEX}"
        )
    for name in set(shards.values()):
        if not name.isprintable() or name.startswith("/") or {"", ".."} & set(name.split("/")):
            raise PackError(
                PackCode.SOURCE_HEADER,
                f"the index names {name!r}, expected a file within the folder",
                path=folder.place,
            )
    return shards


def _json_object(text: bytes, of: Folder | SourceFile, what: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackError(
            PackCode.SOURCE_HEADER, f"{what} is not JSON: {error}", path=of.place
        ) from error
    if not isinstance(data, dict):
        raise PackError(PackCode.SOURCE_HEADER, f"{what} is no JSON object", path=of.place)
    return data
