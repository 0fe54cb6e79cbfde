"""This rank's shards: found, proved to be the right ones, and opened. Knows no tensor library."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkserve_native import RowStore, StoreOptions

from sparkserve.adapters.engram_rows import META, Settings
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.manifest import (
    found_files,
    judge_manifest,
    manifest_name,
    read_manifest,
    wanted_layer,
)
from sparkserve.engram.multipliers import hash_multipliers
from sparkserve.engram.ownership import owned_columns
from sparkserve.engram.rows import open_rows
from sparkserve.engram.shard import ShardIdentity, read_shard
from sparkserve.errors import ConfigError, EngineRefused, ShardError
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.engram_manifest import EngramManifest, WantedShards

logger = logging.getLogger(__name__)

_GIB = 1 << 30


@dataclass(frozen=True)
class OpenLayer:
    """One layer's rows of this rank, ready to be read."""

    identity: ShardIdentity
    store: RowStore

    @property
    def columns(self) -> int:
        """Hash columns of the layer, owned or not."""
        return len(self.identity.bounds) - 1

    @property
    def owned(self) -> slice | None:
        """The hash columns that lie whole in this rank's file, if all but they can be left out.

        None where rows cut through columns, and where the rank owns every column anyway.
        """
        mine = owned_columns(
            self.identity.layout, self.identity.rank, self.identity.tp, self.columns
        )
        if mine is None or len(mine) == self.columns:
            return None
        step = mine[1] - mine[0] if len(mine) > 1 else 1
        return slice(mine[0], mine[-1] + 1, step) if mine else slice(0, 0)


@dataclass(frozen=True)
class RankShards:
    """The shards of one rank, by the model's own config.json."""

    spec: EngineSpec
    settings: Settings
    config: EngramConfig
    checkpoint: Path
    directory: Path

    @classmethod
    def of(cls, spec: EngineSpec, settings: Settings) -> RankShards:
        """Read what the model says about its tables.

        Raises:
            EngineRefused: no Engram directory, no config.json with Engram fields, or a numpy that
                draws other hash multipliers than the released model's.
        """
        if spec.engram is None:
            raise EngineRefused(META.name, "the EngineSpec names no Engram directory")
        checkpoint = Path(spec.expect.checkpoint or _argument(spec.argv, "--model-path") or "")
        config = _read_config(checkpoint / "config.json")
        return cls(spec, settings, config, checkpoint, Path(spec.engram.directory))

    def identity(self, layer: int) -> ShardIdentity:
        """The one shard of a layer that this rank may serve.

        Raises:
            EngineRefused: the model has no table in that layer.
        """
        assert self.spec.engram is not None, "of() refuses a spec without"
        layout, rank, tp = self.spec.engram.layout, self.spec.rank, self.spec.world_size
        try:
            return self.config.shard(layer, layout, rank, tp)
        except ConfigError as error:
            raise EngineRefused(META.name, error.message) from error

    def check(self) -> EngramManifest | None:
        """Judge every shard of this rank: there, whole, and of this rank, layout and table.

        Returns:
            The manifest that describes them; None where there is none and none is required.

        Raises:
            ShardError: a shard or the manifest is not what it must be; the first is named.
        """
        identities = [self.identity(layer) for layer in self.config.layer_ids]
        for identity in identities:
            read_shard(self.directory / identity.file_name, identity)
        of = identities[0]
        path = self.directory / manifest_name(of.rank, of.tp, of.layout)
        manifest = read_manifest(self.directory, of.rank, of.tp, of.layout)
        if manifest is None:
            if self.settings.manifest == "required":
                raise ShardError(str(path), "there is no manifest, and the profile requires one")
            return None
        differences = judge_manifest(manifest, self._wanted(identities, manifest))
        if differences:
            more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
            raise ShardError(
                str(path),
                f"the manifest does not fit: {differences[0]}{more}",
                hint="sparkserve pack",
            )
        return manifest

    def open(self, layer: int) -> OpenLayer:
        """Open one layer's shard with its share of the cache.

        Raises:
            EngineRefused: the shard is not what it must be, or the store refuses its settings.
        """
        identity = self.identity(layer)
        path = self.directory / identity.file_name
        try:
            store = open_rows(path, identity, self._options())
        except ShardError as error:
            raise EngineRefused(META.name, error.message) from error
        except OSError as error:
            raise EngineRefused(META.name, f"{path}: {error.strerror or error}") from error
        return OpenLayer(identity, store)

    def _wanted(
        self, identities: Sequence[ShardIdentity], manifest: EngramManifest
    ) -> WantedShards:
        of = identities[0]
        index = self.checkpoint / "model.safetensors.index.json"
        return WantedShards(
            rank=of.rank,
            tp=of.tp,
            layout=of.layout,
            layers=tuple(wanted_layer(each) for each in identities),
            config_sha256=_sha256(self.checkpoint / "config.json"),
            index_sha256=_sha256(index) if index.is_file() else None,
            files=found_files(self.directory, manifest),
        )

    def _options(self) -> StoreOptions:
        settings = self.settings
        return StoreOptions(
            engine=settings.engine,
            queue_depth=settings.queue_depth,
            threads=settings.io_threads,
            cache_bytes=int(settings.cache_gib * _GIB) // len(self.config.layer_ids),
            cache_ways=settings.cache_ways,
            gap_bytes=settings.gap_bytes,
        )


def warn_without_manifest(shards: RankShards) -> None:
    """Say once that nothing but header and size vouches for the shards."""
    logger.warning(
        "sparkserve: engram_rows: %s has no manifest, so only header and size of its shards "
        "were judged; `sparkserve verify` compares the rows",
        shards.directory,
    )


def _read_config(path: Path) -> EngramConfig:
    try:
        config = EngramConfig.from_config(json.loads(path.read_bytes()))
        # The engine draws its multipliers from this numpy too, and compares them with nothing.
        hash_multipliers(config)
    except OSError as error:
        raise EngineRefused(
            META.name, f"{path}: cannot be read: {error.strerror}; it says where rows lie"
        ) from error
    except ValueError as error:
        raise EngineRefused(META.name, f"{path}: is no JSON: {error}") from error
    except ConfigError as error:
        raise EngineRefused(META.name, f"{path}: {error.message}") from error
    return config


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _argument(argv: Sequence[str], flag: str) -> str | None:
    """Value of a command-line option written as ``--flag value`` or ``--flag=value``."""
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
