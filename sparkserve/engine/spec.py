"""One EngineSpec per rank, built from the profile and the nodes' facts: where ranks differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from sparkserve.engine import containers, env, sglang
from sparkserve.model import run_files
from sparkserve.model.engine_spec import (
    AdapterSpec,
    EngineSpec,
    EngramSpec,
    Expectations,
    GuardSpec,
)
from sparkserve.model.place import Place
from sparkserve.model.profile import Profile
from sparkserve.model.vigil import MemoryRule, WedgeRule
from sparkserve.units import GIB


def run_dir_of(place: Place, run_id: str) -> str:
    """The run's folder on a node."""
    return str(PurePosixPath(place.root) / "state" / "runs" / run_id)


@dataclass(frozen=True)
class Wanted:
    """Everything the specs of one run are built from."""

    profile: Profile
    places: tuple[Place, ...]
    """Rank 0 first."""
    adapters: tuple[AdapterSpec, ...]
    """Validated, in installation order."""
    run_id: str
    checkpoint_files: Mapping[str, Mapping[str, int]]
    """Node name -> file name -> size in bytes, which each node checks again."""


def build(wanted: Wanted) -> tuple[EngineSpec, ...]:
    """The specs of all ranks, rank 0 first."""
    return tuple(_build_rank(wanted, rank) for rank in range(len(wanted.places)))


def _build_rank(wanted: Wanted, rank: int) -> EngineSpec:
    profile, place = wanted.profile, wanted.places[rank]
    run_dir = run_dir_of(place, wanted.run_id)
    engram_dir = _engram_dir(profile, place)
    return EngineSpec(
        run_id=wanted.run_id,
        profile=profile.name,
        profile_digest=profile.digest,
        node=place.name,
        rank=rank,
        world_size=len(wanted.places),
        run_dir=run_dir,
        root=place.root,
        argv=_argv(wanted, rank),
        env=env.render(profile, wanted.places, rank),
        working_dir=run_dir,
        port=profile.serving.port,
        engram=(
            EngramSpec(directory=engram_dir, layout=profile.engram.layout) if engram_dir else None
        ),
        adapters=wanted.adapters,
        expect=Expectations(
            engine_version=profile.engine.version if profile.engine.kind == "sglang" else None,
            checkpoint=place.below_root("checkpoints", profile.model.path),
            checkpoint_files=dict(wanted.checkpoint_files.get(place.name, {})),
        ),
        guard=GuardSpec(
            port=profile.fabric.guard_port,
            head_address=wanted.places[0].address,
            lost_after_s=profile.limits.lost_after_s,
            memory_floor_bytes=round(profile.limits.memory_floor_gib * GIB),
            start_memory=MemoryRule(
                floor_gib=profile.limits.load_floor_gib,
                fall_gib_per_s=profile.limits.load_fall_gib_per_s,
                fall_below_gib=profile.limits.load_fall_below_gib,
            ),
            wedge=WedgeRule(
                after_s=profile.limits.wedge_after_s, power_w=profile.limits.wedge_power_w
            ),
            # An engine without metrics cannot be asked.
            wedge_action=profile.limits.wedge_action if profile.serving.metrics else "off",
        ),
    )


def _argv(wanted: Wanted, rank: int) -> tuple[str, ...]:
    profile, place = wanted.profile, wanted.places[rank]
    run_dir = run_dir_of(place, wanted.run_id)
    model_path = place.below_root("checkpoints", profile.model.path)
    inside = profile.engine.runtime == "container"
    config_dir = containers.RUN_MOUNT if inside else run_dir
    has_key = profile.serving.api_key_file is not None
    engine = [
        "python3" if inside else place.python,
        *("-m", sglang.module_of(profile.engine.kind)),
        *sglang.arguments(
            profile,
            model_path=containers.MODEL_MOUNT if inside else model_path,
            config_path=f"{config_dir}/{run_files.ENGINE_CONFIG}" if has_key else None,
        ),
        *sglang.rank_arguments(
            world_size=len(wanted.places),
            rank=rank,
            head_address=wanted.places[0].address,
            dist_port=profile.fabric.dist_port,
        ),
    ]
    if not inside:
        return tuple(engine)
    paths = containers.ContainerPaths(
        run_dir=run_dir,
        model=model_path,
        cache=f"{place.root}/cache",
        engram=_engram_dir(profile, place),
    )
    return containers.docker_argv(profile, engine, run_id=wanted.run_id, rank=rank, paths=paths)


def _engram_dir(profile: Profile, place: Place) -> str | None:
    directory = profile.engram.directory
    return place.below_root("engram", directory) if directory else None
