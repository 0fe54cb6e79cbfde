"""The manifest beside a rank's shards: read, written, and judged by what is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from sparkserve.engram.ownership import Layout
from sparkserve.engram.shard import ShardIdentity, ShardName, kind_of
from sparkserve.errors import ShardError
from sparkserve.files import replace_file
from sparkserve.model.base import digest
from sparkserve.model.engram_manifest import (
    Difference,
    EngramManifest,
    FoundFile,
    ManifestLayer,
    RowSpan,
    WantedLayer,
    WantedShards,
)
from sparkserve.model.pack import PackCode

_LIMIT_BYTES = 64 << 20
"""No manifest is longer; what is longer is none."""


def manifest_name(rank: int, tp: int, layout: Layout) -> str:
    """File name of a rank's manifest."""
    infix = ".strided" if layout == "strided" else ""
    return f"manifest-r{rank}of{tp}{infix}.json"


def bounds_sha256(bounds: Sequence[int]) -> str:
    """Digest of one table's column bounds: two tables with the same one hash alike."""
    return digest(list(bounds))


def parse_manifest(text: str | bytes, path: str) -> EngramManifest:
    """Read a manifest's text.

    path: where it came from, for the message.

    Raises:
        ShardError: not a manifest of this schema, or one that contradicts itself.
    """
    try:
        found = EngramManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        reason = first["msg"].removeprefix("Value error, ")
        raise ShardError(
            path,
            f"not a manifest that this version reads: {place}: {reason}",
            hint="sparkserve pack --replace, or use the version that packed these shards",
        ) from error
    for layer in found.layers:
        # The file that is judged must be the one that is served.
        kind = kind_of(found.layout)
        name = ShardName(layer.layer, found.rank, found.tp, kind).file_name
        if layer.packed_file != name:
            raise ShardError(
                path,
                f"layer {layer.layer} lies in {layer.packed_file!r}, expected {name}",
                hint="sparkserve pack --replace",
            )
    return found


def read_manifest(directory: Path, rank: int, tp: int, layout: Layout) -> EngramManifest | None:
    """The manifest of a rank's shards; None where there is none.

    Raises:
        ShardError: it cannot be read, or is not one.
    """
    path = directory / manifest_name(rank, tp, layout)
    try:
        with path.open("rb") as file:
            text = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ShardError(str(path), f"cannot be read: {error.strerror}") from error
    if len(text) > _LIMIT_BYTES:
        raise ShardError(str(path), f"longer than {_LIMIT_BYTES} bytes: not a manifest")
    return parse_manifest(text, str(path))


def write_manifest(directory: Path, manifest: EngramManifest) -> Path:
    """Put the manifest in place, whole or not at all.

    Raises:
        OSError: the disk refused.
    """
    path = directory / manifest_name(manifest.rank, manifest.tp, manifest.layout)
    replace_file(path, manifest.model_dump_json(indent=1).encode() + b"\n")
    return path


def found_files(directory: Path, manifest: EngramManifest) -> dict[str, FoundFile]:
    """What lies in the folder under the names of the manifest; what is missing is left out.

    Raises:
        OSError: the folder cannot be read.
    """
    found: dict[str, FoundFile] = {}
    for layer in manifest.layers:
        try:
            status = (directory / layer.packed_file).stat()
        except FileNotFoundError:
            continue
        found[layer.packed_file] = FoundFile(
            size_bytes=status.st_size, allocated_bytes=status.st_blocks * 512
        )
    return found


def judge_manifest(manifest: EngramManifest | None, wanted: WantedShards) -> tuple[Difference, ...]:
    """Every way in which a manifest is not what is wanted; none = it may be used.

    manifest: None = there is none, which is a difference.
    """
    if manifest is None:
        name = manifest_name(wanted.rank, wanted.tp, wanted.layout)
        return (Difference(PackCode.MANIFEST, "manifest", name, "none"),)
    found = [*_whole(manifest, wanted)]
    layers = {layer.layer: layer for layer in manifest.layers}
    for want in wanted.layers:
        have = layers.get(want.layer)
        if have is None:
            listed = ", ".join(str(number) for number in layers)
            expected = f"layer {want.layer}"
            found.append(Difference(PackCode.TABLE, "layers", expected, f"only {listed}"))
        else:
            found += _layer(have, want)
    names = {want.layer for want in wanted.layers} or set(layers)
    if wanted.files is not None:
        for layer in manifest.layers:
            if layer.layer in names:
                found += _file(layer, wanted.files.get(layer.packed_file))
    return tuple(found)


def wanted_layer(shard: ShardIdentity) -> WantedLayer:
    """What a manifest must say of one shard."""
    return WantedLayer(
        layer=shard.layer,
        ranges=tuple(RowSpan(*each) for each in shard.ranges),
        total_rows=shard.total_rows,
        row_bytes=shard.row_bytes,
        bounds_sha256=bounds_sha256(shard.bounds),
    )


def _whole(manifest: EngramManifest, wanted: WantedShards) -> Iterator[Difference]:
    world = PackCode.WORLD_OR_REVISION
    for code, what, expected, observed in (
        (world, "ranks", wanted.tp, manifest.tp),
        (world, "rank", wanted.rank, manifest.rank),
        (PackCode.LAYOUT_FLAG, "layout", wanted.layout, manifest.layout),
        # Unknown on either side is no contradiction; the digests below prove identity.
        (world, "revision", wanted.revision, manifest.revision or wanted.revision),
        (PackCode.IDENTITY, "config.json", wanted.config_sha256, manifest.checkpoint_config_sha256),
        (PackCode.IDENTITY, "index", wanted.index_sha256, manifest.checkpoint_index_sha256),
    ):
        if expected is not None and expected != observed:
            yield Difference(code, what, str(expected), str(observed))


def _layer(have: ManifestLayer, want: WantedLayer) -> Iterator[Difference]:
    at = f"layer {want.layer}"
    bounds = want.bounds_sha256
    for what, expected, observed in (
        ("rows of the table", want.total_rows, have.total_rows),
        ("bytes per row", want.row_bytes, have.row_bytes),
        ("column bounds", bounds, have.bounds_sha256 if bounds else None),
        ("rows", _spans(want.ranges), _spans(have.ranges)),
    ):
        if expected != observed:
            yield Difference(PackCode.TABLE, f"{at}: {what}", str(expected), str(observed))


def _file(layer: ManifestLayer, found: FoundFile | None) -> Iterator[Difference]:
    short = PackCode.SHORT_SHARD
    if found is None:
        yield Difference(short, layer.packed_file, f"{layer.bytes} bytes", "missing")
        return
    if found.size_bytes != layer.bytes:
        yield Difference(
            short, layer.packed_file, f"{layer.bytes} bytes", f"{found.size_bytes} bytes"
        )
        return
    # Compressing file systems allocate less than the size, and the manifest knows how much.
    needed = min(layer.bytes, layer.allocated_bytes)
    if found.allocated_bytes < needed:
        yield Difference(
            short,
            f"{layer.packed_file}: bytes on disk",
            f"at least {needed}",
            f"{found.allocated_bytes} (holes)",
        )


def _spans(ranges: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{start} to {end}" for start, end in ranges)
