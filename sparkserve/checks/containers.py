"""Container runtime, images, containers: what keeps an engine from running inside one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.container_images import IMAGES
from sparkserve.checks.scene import Scene
from sparkserve.checks.ssh import survives_quoting
from sparkserve.facts.containers import (
    Container,
    Containers,
    DockerDaemon,
    DockerInfo,
    Memlock,
    RdmaDevices,
)
from sparkserve.facts.rendered import ArgvUnderTest
from sparkserve.facts.tools import Programs
from sparkserve.facts.unified import Meminfo

_ENGINE = re.compile(
    r"(?i)sglang|vllm|sparkserve|deepseek|dsv\d|dspark|llm|engine|rank|serve|worker|infer|model|"
    r"(?:^|[-_/])(?:head|tp\d|node\d)"
)
_OTHER = re.compile(
    r"(?i)portainer|watchtower|registry|grafana|prometheus|exporter|cadvisor|nginx|traefik|caddy|"
    r"postgres|redis|mysql|mongo|webui|jupyter|gitlab|nfs|dashboard|netdata|tailscale|cloudflared|"
    r"pihole|minio|kuma|dozzle|homepage|homeassistant|node-red|loki|telegraf|influx|proxy"
)


def is_engine(container: Container) -> bool | None:
    """Whether a container serves a model, by its name, image and labels; None = they do not tell.

    [proposal] The words are those of published recipes and of what else runs on such machines.
    """
    told = f"{container.name or ''} {container.image or ''}"
    if any(key.startswith("sparkserve.") for key in container.labels or {}):
        return True
    if _OTHER.search(told):
        return False
    if _ENGINE.search(told):
        return True
    return False if container.image else None


def wants_containers(scene: Scene) -> bool:
    """Whether the engine is to run in a container; unknown counts as yes."""
    return scene.wish is None or scene.wish.engine.runtime == "container"


def _access(scene: Scene) -> Iterator[Judgement]:
    for place, daemon in scene.each(DockerDaemon):
        where = place or "the node"
        if daemon.problem is None:
            yield passed(place, "docker answers")
        elif daemon.problem == "permission" and _blinds(scene):
            yield Judgement(
                place, "fail",
                observed="docker refuses this user (permission denied), so the state of "
                "containers there is UNKNOWN",
                expected="`docker ps` answers over the launcher's own login, without sudo",
                fix=f"on {where}: sudo usermod -aG docker $USER, then log in anew",
                evidence=(daemon.message,),
            )  # fmt: skip
        elif not wants_containers(scene):
            told = "is not installed" if daemon.problem == "absent" else "does not answer"
            yield Judgement(place, "skipped", observed=f"docker {told}; the profile needs none")
        elif daemon.problem == "not-running":
            yield Judgement(
                place, "fail", code="CTR_DOCKER_DOWN",
                observed="the docker daemon does not run; the state of containers is UNKNOWN",
                expected="a running daemon", evidence=(daemon.message,),
                fix=f"on {where}: sudo systemctl enable --now docker",
            )  # fmt: skip
        else:
            yield Judgement(
                place, "fail", code="CTR_DOCKER_ABSENT", observed="there is no docker",
                expected="docker, as the profile runs the engine in a container",
                fix='install docker, or set engine.runtime = "venv"', evidence=(daemon.message,),
            )  # fmt: skip


def _blinds(scene: Scene) -> bool:
    """Whether a refusal hides what matters: on Sparks a stale container holds memory and ports."""
    if scene.wish is None or scene.fleet is None or wants_containers(scene):
        return True
    return scene.wish.engine.device == "cuda" and len(scene.fleet.nodes) > 1


def _nvidia(scene: Scene) -> Iterator[Judgement]:
    if not wants_containers(scene):
        return
    for place, info in scene.each(DockerInfo):
        runtimes = info.runtimes or ()
        if "nvidia" in (*runtimes, info.default_runtime):
            yield passed(place, "docker has the nvidia runtime")
        elif info.has_cdi_gpu:
            yield passed(place, "docker knows the GPU by CDI")
        elif info.runtimes is not None:
            programs = scene.near(place, Programs)
            tool = programs.paths.get("nvidia-ctk") if programs else None
            yield Judgement(
                place,
                "fail",
                observed=f"no nvidia runtime: docker has {', '.join(runtimes) or 'none'}"
                + (f"; the toolkit is there ({tool})" if tool else ""),
                expected="runtime nvidia, or a GPU known by CDI",
                fix=f"on {place or 'the node'}: sudo nvidia-ctk runtime configure --runtime=docker "
                "&& sudo systemctl restart docker",
                # With the toolkit present, `--gpus` may work without a runtime of that name.
                severity="warning" if tool else None,
            )


def _memlock(scene: Scene) -> Iterator[Judgement]:
    if not wants_containers(scene):
        return
    for place, limit in scene.each(Memlock):
        if not limit.in_container:
            continue
        if limit.is_unlimited:
            yield passed(place, "locked memory is unlimited in the container")
        else:
            yield _limited(scene, place, f"`ulimit -l` is {limit.limit_kib} KiB in the container")
    for place, name, container in engines(scene):
        if container.memlock_bytes is not None and container.memlock_bytes != -1:
            limit_kib = container.memlock_bytes // 1024
            yield _limited(scene, place, f"docker limits {name} to {limit_kib} KiB")


def _limited(scene: Scene, place: str | None, observed: str) -> Judgement:
    memory = scene.near(place, Meminfo)
    total, free = (memory.cma_total_bytes, memory.cma_free_bytes) if memory else (None, None)
    cma = "; CMA was not read"
    if total is not None and free is not None:
        state = "healthy" if free <= total else "wrong, too"
        cma = f"; CmaFree {free // 1024} kB, CmaTotal {total // 1024} kB: CMA is {state}"
    return Judgement(
        place, "fail", observed=observed + cma, expected="unlimited",
        fix="start the container with --ulimit memlock=-1:-1",
    )  # fmt: skip


def engines(scene: Scene) -> Iterator[tuple[str | None, str, Container]]:
    """(place, name, container) of every container of an engine, everything known of it merged.

    One whose name tells nothing counts where no other of the place is known to be an engine.
    """
    for place, fact in scene.each(Containers):
        certain = any(is_engine(container) for container in fact.containers)
        for container in fact.containers:
            serves = is_engine(container)
            if serves or (serves is None and not certain):
                yield place, container.name or container.id or "a container", container


def _restarts(scene: Scene) -> Iterator[Judgement]:
    for place, name, one in engines(scene):
        faults = []
        if one.restart_count is not None and one.restart_count > 1:
            faults.append(f"{one.restart_count} restarts")
        elif one.status == "restarting":
            faults.append("is restarting now")
        if one.restart_policy in ("always", "unless-stopped"):
            faults.append(f"restart policy {one.restart_policy}")
        if faults:
            yield Judgement(
                place,
                "fail",
                observed=f"{name}: {', '.join(faults)}",
                expected="restart policy no, and no restarts",
                # Beside an engine of ours it is another's choice, and yet it takes the memory.
                severity=None if wants_containers(scene) else "warning",
                fix=f"docker update --restart=no {one.name or one.id or 'NAME'}",
            )
        elif one.restart_policy is not None or one.restart_count is not None:
            yield passed(place, f"{name}: restart policy {one.restart_policy or 'not shown'}")


def _created(scene: Scene) -> Iterator[Judgement]:
    for place, name, one in engines(scene):
        ours = any(key.startswith("sparkserve.") for key in one.labels or {})
        if one.status == "created" and (ours or wants_containers(scene)):
            yield Judgement(
                place,
                "fail",
                observed=f"{name} is in state created: it never ran",
                expected="running within 10 s of its start",
                fix=f"docker inspect -f '{{{{json .Args}}}} {{{{.State.Error}}}}' {name}",
            )
    for place, fact, _ in scene.seen(ArgvUnderTest):
        if survives_quoting(fact.argv):
            yield passed(
                place, f"{len(fact.argv)} words come through the shell's quoting unchanged"
            )
        else:
            yield Judgement(
                place,
                "fail",
                observed="the command line changes when it is quoted for a shell",
                expected="the same words on the node",
            )


def _infiniband(scene: Scene) -> Iterator[Judgement]:
    wish = scene.wish
    if wish is not None and wish.engine.device == "cuda" and wish.fabric.hca:
        for place, devices in scene.each(RdmaDevices):
            verbs = [name for name in devices.names if name.startswith("uverbs")]
            if verbs:
                yield passed(place, f"/dev/infiniband has {len(verbs)} devices")
            else:
                yield Judgement(
                    place, "fail", observed="no /dev/infiniband/uverbs*",
                    expected="one per RDMA device", fix="sudo modprobe ib_uverbs mlx5_ib",
                )  # fmt: skip
    for place, name, one in engines(scene):
        given = one.devices
        if given is None or not _wants_rdma(one):
            continue
        if any(path == "/dev" or path.startswith("/dev/infiniband") for path in given):
            yield passed(place, f"{name} has /dev/infiniband")
        else:
            yield Judgement(
                place, "fail", observed=f"{name} is not given /dev/infiniband",
                expected="the RDMA devices that NCCL_IB_HCA names",
                fix="start it with --device /dev/infiniband",
            )  # fmt: skip


def _wants_rdma(container: Container) -> bool:
    names = [row.partition("=")[0] for row in container.environment or ()]
    off = "NCCL_IB_DISABLE=1" in (container.environment or ())
    return "NCCL_IB_HCA" in names and not off


CHECKS: tuple[Check, ...] = (
    Check(
        "DOCKER.ACCESS", "CTR_DOCKER_PERMISSION", "docker answers the launcher's user", ("doctor",),
        "error", "hardware", (DockerDaemon,), _access,
        why="who may not ask docker sees no container, which is not the same as none",
        fix="sudo usermod -aG docker $USER  # then log in anew",
        symptom="'permission denied while trying to connect to the Docker daemon socket' over SSH; "
        "tools report that nothing runs.",
        also=("CTR_DOCKER_DOWN", "CTR_DOCKER_ABSENT"),
    ),
    Check(
        "DOCKER.NVIDIA", "CTR_NO_NVIDIA_RUNTIME", "Containers can see the GPU", ("doctor",),
        "error", "hardware", (DockerInfo,), _nvidia,
        why="without the runtime or CDI a container gets no GPU",
        fix="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        symptom="'unknown or invalid runtime name: nvidia', or no GPU inside the container, on one "
        "node alone.",
    ),
    *IMAGES,
    Check(
        "CTR.MEMLOCK", "CTR_MEMLOCK", "A container may pin memory for RDMA", ("doctor",), "error",
        "config", (Memlock, Containers), _memlock,
        why="RDMA pins its buffers; under a limit ibv_reg_mr fails with the words of a memory "
        "fault. The other cause of these words is a kernel whose CMA figures are wrong",
        fix="--ulimit memlock=-1:-1",
        symptom="'Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory' while memory "
        "is free.",
    ),
    Check(
        "CTR.IB", "CTR_NO_INFINIBAND", "The engine gets the RDMA devices", ("doctor",), "error",
        "config", (RdmaDevices, Containers), _infiniband,
        why="without them NCCL falls back to TCP or finds no device",
        fix="--device /dev/infiniband",
        symptom="'NET/IB : No device found', or a slow fabric.",
    ),
    Check(
        "CTR.RESTARTS", "MEM_RESTART_LOOP", "Engines are not started again by docker",
        ("profile", "doctor"), "error", "config", (Containers,), _restarts,
        why="a start that failed for memory is repeated for ever; each try may lock the node up",
        fix="docker update --restart=no NAME",
        symptom="The node becomes slow or dies some minutes after every boot.",
    ),
    Check(
        "CTR.STARTED", "SSH_ARGV_REPARSED", "Containers that were made also run",
        ("launch", "watch", "doctor"), "error", "engine", (Containers,), _created,
        why="arguments with blanks or quotes were split anew by the shell on the node, so docker "
        "made the container and could not start its program",
        fix="quote every argument once for the remote shell (shlex.join)",
        symptom="One rank stays in state created; its log is empty.",
    ),
)  # fmt: skip
