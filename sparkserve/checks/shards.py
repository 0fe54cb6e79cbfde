"""Whether the packed Engram rows on every node are the ones this profile serves.

Judged by what a bare node shows: names, sizes, blocks, headers and manifests. Bytes are compared
by ``sparkserve verify --engram``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkserve.checks.check import Check, Judgement, passed, unknown
from sparkserve.checks.scene import Scene
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.header import Header, unpack_header
from sparkserve.engram.manifest import (
    judge_manifest,
    manifest_name,
    parse_manifest,
    wanted_layer,
)
from sparkserve.engram.shard import ShardIdentity, ShardName, kind_of
from sparkserve.errors import ConfigError, ShardError
from sparkserve.facts import shards
from sparkserve.facts.shards import ShardFacts, ShardFile, SourceFacts
from sparkserve.model.engram_manifest import (
    Difference,
    EngramManifest,
    WantedShards,
)
from sparkserve.model.facts import Unobserved
from sparkserve.model.pack import PackCode
from sparkserve.model.profile import Profile
from sparkserve.units import format_bytes

_FILES = (PackCode.SHORT_SHARD, PackCode.MANIFEST)
_IDENTITY = (PackCode.WORLD_OR_REVISION, PackCode.IDENTITY, PackCode.TABLE)
_LAYOUT = (PackCode.LAYOUT_FLAG,)


@dataclass(frozen=True)
class Held:
    """What one node holds for its rank, and everything that is wrong with it."""

    facts: ShardFacts
    files: tuple[ShardFile, ...]
    """The rank's own shards, by their names."""
    manifest_file: str
    """The manifest's name, whether or not it is there."""
    differences: tuple[Difference, ...]

    def among(self, codes: Sequence[PackCode]) -> tuple[Difference, ...]:
        """The differences of some kinds."""
        return tuple(one for one in self.differences if one.code in codes)


def examine(profile: Profile, rank: int, facts: ShardFacts, source: SourceFacts | None) -> Held:
    """Judge a node's shards by their names, sizes, blocks, headers and manifest.

    source: the checkpoint on the node; where it is not known, the shards are only judged by what
        they say of themselves.
    """
    names = {file.name: ShardName.parse(file.name) for file in facts.files}
    key = (rank, profile.parallel.tp, kind_of(profile.engram.layout))
    mine = tuple(f for f in facts.files if (n := names[f.name]) and (n.rank, n.tp, n.kind) == key)
    name = manifest_name(rank, profile.parallel.tp, profile.engram.layout)
    if not mine:
        others = [other for other in names.values() if other is not None]
        return Held(facts, mine, name, (_absent(profile, rank, facts, others),))
    wanted = _wanted(profile, rank, source)
    found: list[Difference] = []
    manifest = _manifest(facts, name, found)
    found += _files(mine, wanted, manifest)
    if manifest is not None:
        told = {one.what for one in found}
        judged = judge_manifest(manifest, _asked(profile, rank, source, wanted))
        found += [one for one in judged if one.what.partition(":")[0] not in told]
    if any(one.code == PackCode.LAYOUT_FLAG for one in found):
        # That the ranges differ follows from it.
        found = [one for one in found if not one.what.endswith(": rows")]
    return Held(facts, mine, name, tuple(found))


def _wanted(profile: Profile, rank: int, source: SourceFacts | None) -> tuple[ShardIdentity, ...]:
    """The shards this rank must have; none where config.json is not there or names no tables."""
    if source is None or source.config is None:
        return ()
    try:
        config = EngramConfig.from_config(source.config)
    except ConfigError:
        return ()
    tp, layout = profile.parallel.tp, profile.engram.layout
    return tuple(config.shard(layer, layout, rank, tp) for layer in config.layer_ids)


def _asked(
    profile: Profile, rank: int, source: SourceFacts | None, wanted: Sequence[ShardIdentity]
) -> WantedShards:
    whole = source is not None and source.is_whole
    return WantedShards(
        rank=rank,
        tp=profile.parallel.tp,
        layout=profile.engram.layout,
        layers=tuple(wanted_layer(shard) for shard in wanted),
        revision=profile.model.revision,
        config_sha256=source.config_sha256 if source and whole else None,
        index_sha256=source.index_sha256 if source and whole else None,
    )


def _absent(
    profile: Profile, rank: int, facts: ShardFacts, others: Sequence[ShardName]
) -> Difference:
    """Why none of the files is this rank's: the nearest of the others says it."""
    tp, layout = profile.parallel.tp, profile.engram.layout
    same_rank = [other for other in others if (other.rank, other.tp) == (rank, tp)]
    same_tp = [other for other in others if other.tp == tp]
    if same_rank:
        packed = "strided" if layout != "strided" else "columns or equal"
        return Difference(PackCode.LAYOUT_FLAG, "layout", layout, f"packed for {packed}")
    if same_tp:
        ranks = ", ".join(str(number) for number in sorted({other.rank for other in same_tp}))
        return Difference(
            PackCode.WORLD_OR_REVISION, "rank", f"rank {rank}", f"packed for rank {ranks} of {tp}"
        )
    if others:
        sizes = ", ".join(str(number) for number in sorted({other.tp for other in others}))
        return Difference(PackCode.WORLD_OR_REVISION, "ranks", f"tp {tp}", f"packed for tp {sizes}")
    where = facts.path if facts.there else f"{facts.path}, which does not exist"
    return Difference(
        PackCode.SHORT_SHARD, "shards", "one per Engram layer", f"no packed Engram rows in {where}"
    )


def _manifest(facts: ShardFacts, name: str, found: list[Difference]) -> EngramManifest | None:
    """The rank's manifest; what is wrong with one that cannot be read is added to ``found``."""
    if name not in facts.manifests:
        return None
    try:
        return parse_manifest(json.dumps(facts.manifests[name]), name)
    except ShardError as error:
        found.append(Difference(PackCode.MANIFEST, name, "a whole manifest", _reason(error)))
        return None


def _files(
    mine: Sequence[ShardFile], wanted: Sequence[ShardIdentity], manifest: EngramManifest | None
) -> Iterator[Difference]:
    """What names, headers, sizes and blocks say against the files."""
    listed = {layer.packed_file: layer for layer in manifest.layers} if manifest else {}
    by_name = {shard.file_name: shard for shard in wanted}
    there = {file.name for file in mine}
    for name in dict.fromkeys([*by_name, *listed]):
        if name not in there:
            yield Difference(PackCode.SHORT_SHARD, name, "the rank's shard", "missing")
    for file in mine:
        try:
            header = unpack_header(bytes.fromhex(file.header), Path(file.name))
        except ShardError as error:
            yield Difference(PackCode.SHORT_SHARD, file.name, "a shard's header", _reason(error))
            continue
        # A compressing file system allocates less than the size, and the manifest knows how much.
        least = listed[file.name].allocated_bytes if file.name in listed else header.file_bytes
        yield from _extent(file, header, least_bytes=min(least, header.file_bytes))
        if file.name in by_name:
            yield from _header(header, by_name[file.name])


def _extent(file: ShardFile, header: Header, *, least_bytes: int) -> Iterator[Difference]:
    wanted_bytes = header.file_bytes
    if file.size_bytes != wanted_bytes:
        rows, rest_bytes = divmod(abs(file.size_bytes - wanted_bytes), header.row_bytes)
        parts = [f"{rows:,} row{'s' if rows != 1 else ''}"] if rows else []
        parts += [f"{rest_bytes} bytes"] if rest_bytes else []
        end = "short" if file.size_bytes < wanted_bytes else "too long"
        observed = f"{' and '.join(parts)} {end}: {file.size_bytes:,} bytes"
        yield Difference(PackCode.SHORT_SHARD, file.name, f"{wanted_bytes:,} bytes", observed)
    elif file.allocated_bytes < least_bytes:
        observed = f"holes: {file.allocated_bytes:,} of {wanted_bytes:,} bytes are on the disk"
        yield Difference(PackCode.SHORT_SHARD, file.name, "all of them", observed)


def _header(header: Header, shard: ShardIdentity) -> Iterator[Difference]:
    try:
        shard.check(header, Path(shard.file_name))
    except ShardError as error:
        reason = _reason(error)
        # Sound rows of the same table that are not this layout's are another layout's.
        of_table = reason.startswith(("layer ", "total_rows ", "row_bytes "))
        code = PackCode.TABLE if of_table else PackCode.LAYOUT_FLAG
        yield Difference(code, shard.file_name, f"the rows of layout {shard.layout}", reason)


def _reason(error: ShardError) -> str:
    """A shard error without its path, which stands beside it."""
    return error.message.partition(": ")[2]


def _judged(scene: Scene, codes: Sequence[PackCode], *, why: str) -> Iterator[Judgement]:
    if scene.profile.engram.directory is None:
        return
    for rank, node, facts in scene.nodes():
        found, source = shards.SHARDS.read(facts), shards.SOURCE.read(facts)
        if isinstance(found, Unobserved):
            yield unknown(node, found)
            continue
        checkpoint = None if isinstance(source, Unobserved) else source
        held = examine(scene.profile, rank, found, checkpoint)
        wrong = held.among(codes)
        if wrong:
            yield Judgement(
                node,
                "fail",
                observed="; ".join(f"{one.what}: {one.observed}" for one in wrong[:5]),
                expected=wrong[0].expected,
                why=why,
                fix=_fix(scene, held),
            )
        else:
            yield _well(scene, node, held, codes)


def _fix(scene: Scene, held: Held) -> str:
    """The pack command; shards that are there, but wrong, are only replaced when told so."""
    if not held.files and scene.profile.model.obtain:
        return scene.profile.model.obtain
    return f"{_pack(scene)}{' --replace' if held.files else ''}"


def _pack(scene: Scene) -> str:
    return f"sparkserve pack {scene.named or f'--profile {shlex.quote(scene.profile.name)}'}"


def _well(scene: Scene, node: str, held: Held, codes: Sequence[PackCode]) -> Judgement:
    if held.differences:
        return Judgement(node, "skipped", observed="another check of the shards failed")
    if codes == _IDENTITY and held.manifest_file not in held.facts.manifests:
        return Judgement(
            node,
            "unknown",
            observed=f"no {held.manifest_file} in {held.facts.path}: nobody can tell which "
            "checkpoint these rows are from",
            fix=f"{_pack(scene)}  # adopts them once they agree with the source",
        )
    size_bytes = sum(file.size_bytes for file in held.files)
    return passed(node, f"{held.facts.path}: {format_bytes(size_bytes)}")


def _packed(scene: Scene) -> Iterator[Judgement]:
    why = "a missing shard serves nothing, a short one or one with holes serves wrong vectors"
    return _judged(scene, _FILES, why=why)


def _identity(scene: Scene) -> Iterator[Judgement]:
    why = "rows of another split or checkpoint are valid vectors of the wrong n-grams"
    return _judged(scene, _IDENTITY, why=why)


def _layout(scene: Scene) -> Iterator[Judgement]:
    why = "valid rows of the wrong columns: plausible text of lower quality, and nothing crashes"
    return _judged(scene, _LAYOUT, why=why)


_NEEDS = (shards.SHARDS, shards.SOURCE)
_FIX = "sparkserve pack"
ENGRAM: tuple[Check, ...] = (
    Check(
        "ENGRAM.PACKED", "PCK_SHORT_SHARD", "Engram rows are packed and whole", ("launch",),
        "error", "hardware", _NEEDS, _packed, fix=_FIX,
        why="a rank reads its rows from its own NVMe while it answers",
        symptom="The engine refuses to start for want of a shard, or ends while it answers.",
    ),
    Check(
        "ENGRAM.IDENTITY", "PCK_WORLD_OR_REVISION", "Engram rows are of this rank and model",
        ("launch",), "error", "hardware", _NEEDS, _identity, fix=_FIX,
        why="rows of another rank or revision are read without an error and give nonsense",
        symptom="Answers are fluent and wrong after a change of ranks or of the checkpoint.",
    ),
    Check(
        "ENGRAM.LAYOUT", "PCK_LAYOUT_FLAG", "Engram rows lie in the profile's layout",
        ("launch",), "error", "hardware", _NEEDS, _layout, fix=_FIX,
        why="the layout says which rank owns which row",
        symptom="The engine refuses shards that were packed with another layout.",
    ),
)  # fmt: skip
"""In the order in which they are shown."""
