"""The docker command line of one rank, for ``runtime = "container"``.

Rendering only: nothing here starts a container. No ``--privileged``: the devices and
capabilities that the engine needs are named one by one. Not verified on a Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from sparkserve.model.engine_spec import SPEC_VARIABLE
from sparkserve.model.profile import Profile

RUN_MOUNT = "/sparkserve/run"
MODEL_MOUNT = "/sparkserve/model"
ENGRAM_MOUNT = "/sparkserve/engram"
CACHE_MOUNT = "/sparkserve/cache"


@dataclass(frozen=True)
class ContainerPaths:
    """Folders of the node that a rank's container sees; all absolute."""

    run_dir: str
    model: str
    cache: str
    engram: str | None


def container_name(profile: Profile, rank: int) -> str:
    """Name of a rank's container."""
    return f"sparkserve-{profile.name}-r{rank}"


def docker_argv(
    profile: Profile, engine_argv: Sequence[str], *, run_id: str, rank: int, paths: ContainerPaths
) -> tuple[str, ...]:
    """``docker run`` in the foreground, so that the guard's child ends when the container does.

    engine_argv: the engine's own command line as it runs inside.
    """
    image = profile.engine.image
    if image is None:
        raise ValueError("runtime container without an image")
    mounts = [
        f"type=bind,src={paths.run_dir},dst={RUN_MOUNT}",
        f"type=bind,src={paths.model},dst={MODEL_MOUNT},readonly",
        f"type=bind,src={paths.cache},dst={CACHE_MOUNT}",
    ]
    if paths.engram is not None:
        mounts.append(f"type=bind,src={paths.engram},dst={ENGRAM_MOUNT},readonly")
    return (
        *("docker", "run", "--rm", "--init", "--pull=never"),
        *("--name", container_name(profile, rank)),
        *("--label", f"sparkserve.run={run_id}"),
        *("--label", f"sparkserve.profile={profile.name}"),
        *("--label", f"sparkserve.rank={rank}"),
        *("--network", "host", "--ipc", "host", "--gpus", "all", "--shm-size", "32g"),
        *("--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1:-1", "--ulimit", "stack=67108864"),
        *("--device", "/dev/infiniband"),
        *(part for mount in mounts for part in ("--mount", mount)),
        *("--env-file", str(PurePosixPath(paths.run_dir) / "engine.env")),
        *("--env", f"{SPEC_VARIABLE}={RUN_MOUNT}/engine.json"),
        image,
        *engine_argv,
    )
