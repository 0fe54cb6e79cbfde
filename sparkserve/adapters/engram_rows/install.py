"""Judge this rank's shards and give the class replacement; nothing is changed here."""

from __future__ import annotations

import multiprocessing

from sparkserve.adapters.engram_rows import EMBEDDING, META, Settings
from sparkserve.adapters.engram_rows.embedding import embedding_class
from sparkserve.adapters.engram_rows.shards import RankShards, warn_without_manifest
from sparkserve.adapters.install import Patch
from sparkserve.errors import EngineRefused
from sparkserve.model.base import digest
from sparkserve.model.engine_spec import EngineSpec

_OTHER_BACKENDS = (
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE",
    "SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS",
    "SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING",
)


def install(spec: EngineSpec, settings: Settings) -> tuple[Patch, ...]:
    """Judge this rank's shards and return the class replacement.

    Raises:
        EngineRefused: no Engram directory, a model without tables, or another row backend.
        ShardError: a shard of this rank is missing or cannot be trusted.
    """
    # Bound in the function only: a module-level name would be rewritten to our own class.
    from sglang.srt.layers import engram

    for variable in _OTHER_BACKENDS:
        if spec.env.get(variable, "0").lower() not in ("", "0", "false"):
            raise EngineRefused(META.name, f"{variable} asks for another backend of the rows")
    shards = RankShards.of(spec, settings)
    manifest = shards.check()
    # Every process of the engine judges the shards; one of them saying so is enough.
    if manifest is None and multiprocessing.parent_process() is None:
        warn_without_manifest(shards)
    sha256 = None if manifest is None else digest(manifest)
    return (Patch(EMBEDDING, embedding_class(engram.EngramEmbedding, shards, sha256)),)
