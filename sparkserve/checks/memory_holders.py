"""Who holds memory that a launch needs: orphans of earlier engines, page cache of an NFS head."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import gib, is_serving, run_on, shown
from sparkserve.checks.scene import Scene
from sparkserve.facts.container_kinds import Container, Containers, DockerDaemon
from sparkserve.facts.exports import Exports
from sparkserve.facts.gpu import GpuProcess, GpuProcesses, ProcessOwners
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.services import NfsServer, Services
from sparkserve.facts.sockets import Listeners
from sparkserve.facts.unified import Meminfo
from sparkserve.units import GIB, MIB

_HOLDS_BYTES = 1 * GIB
_CACHE_BYTES = 10 * GIB
_GAP_GB = 5.0
"""How far the ranks' free memory at the start of the load may differ."""
_DESKTOP = re.compile(
    r"(?i)(?:^|/)(?:Xorg|Xwayland|gnome-\S+|kwin\S*|plasmashell|mutter\S*|gdm\S*|sddm|lightdm"
    r"|firefox\S*|chrom(?:e|ium)\S*|nautilus|xdg-desktop-portal\S*|cinnamon|code)(?: |$)"
)
_ENGINE = re.compile(r"(?i)sglang|vllm|engine|python|ray::|torchrun|trtllm|llama|ollama|scheduler")


def _orphans(scene: Scene) -> Iterator[Judgement]:
    for place, gpu in scene.each(GpuProcesses):
        others = [p for p in gpu.processes if not _DESKTOP.search(p.name)]
        large = [p for p in others if p.used_bytes is not None and p.used_bytes > _HOLDS_BYTES]
        unsized = [p for p in others if p.used_bytes is None and _ENGINE.search(p.name)]
        serves = run_on(scene, place)
        for process in large:
            if serves is None:
                yield _whose(scene, place, process)
        for process in unsized:
            if serves is None:
                yield Judgement(
                    place, "unknown", f"pid {process.pid} ({process.name}) holds an unknown amount"
                    " of GPU memory", evidence=shown(scene, place, GpuProcesses),
                )  # fmt: skip
        idle = [c for c in _running(scene.near(place, Containers)) if is_serving(c)]
        if idle and not large and not unsized and serves is None:
            yield _busy(scene, place, f"container {idle[0].name} runs")
        elif not large and not unsized:
            yield passed(place, "no process holds more than 1 GiB of the GPU's memory")
        elif serves is not None:
            yield Judgement(place, "skipped", f"run {serves} holds the node")


def _whose(scene: Scene, place: str | None, process: GpuProcess) -> Judgement:
    """Judge one large process by the container that it belongs to."""
    size = f"{(process.used_bytes or 0) // MIB} MiB"
    told = f"pid {process.pid} ({process.name}) holds {size}"
    daemon, listed = scene.near(place, DockerDaemon), scene.near(place, Containers)
    owners = scene.near(place, ProcessOwners)
    owner = next((o for o in owners.owners if o.pid == process.pid), None) if owners else None
    running = _running(listed)
    proof = shown(scene, place, GpuProcesses, Containers, ProcessOwners)
    inside = owner.container if owner else None
    if inside is not None:
        mine = next((c for c in running if _same_id(c.id, inside)), None)
        if mine is not None or listed is None or not listed.running_listed:
            return _busy(scene, place, f"{told} in container {mine.name if mine else inside[:12]}")
        told += f" of container {inside[:12]}, which does not run any more"
    elif owner is not None:
        told += f" and belongs to no container (parent {owner.parent})"
    elif listed is None and (daemon is None or daemon.problem != "absent"):
        asked = "docker was not asked" if daemon is None else "docker did not answer"
        return Judgement(
            place, "unknown", f"{told}; {asked}, so its owner is not known",
            fix=f"docker ps; cat /proc/{process.pid}/cgroup", evidence=proof,
        )  # fmt: skip
    elif candidates := [c for c in running if is_serving(c)]:
        return _busy(scene, place, f"{told}; container {candidates[0].name} runs")
    else:
        told += " and belongs to no running container"
    return Judgement(
        place, "fail", told, "no process with more than 1 GiB outside a running container",
        fix=f"on {place or 'the node'}: ps -o pid,ppid,user,lstart,args -p {process.pid}, and once"
        f" you know it is a leftover: kill {process.pid}",
        evidence=proof,
    )  # fmt: skip


def _running(listed: Containers | None) -> Sequence[Container]:
    if listed is None:
        return ()
    return [c for c in listed.containers if c.status in (None, "running", "up", "paused")]


def _same_id(one: str | None, other: str) -> bool:
    return bool(one) and (other.startswith(one or "-") or (one or "").startswith(other))


def _busy(scene: Scene, place: str | None, told: str) -> Judgement:
    """A server that runs: in nobody's way where only texts are judged, but a launch must wait."""
    if scene.fleet is None:
        return passed(place, told)
    return Judgement(
        place, "fail", told, "no other server on this node", code="GPU_BUSY",
        why="two engines on one Spark share one pool of memory",
        fix=f"stop that server on {place} first", evidence=shown(scene, place, GpuProcesses),
    )  # fmt: skip


_SHORT = re.compile(
    r"Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired"
    r".*?\(([\d.]+), ([\d.]+) GiB\)"
)
_LOAD_BEGIN = re.compile(r"Load weight begin.*?avail mem=([\d.]+) ?GB")
_NFS_SERVICE = re.compile(r"(?i)nfs-(?:kernel-)?server|nfs-ganesha|nfsd")


def _serves_files(scene: Scene, place: str | None) -> bool:
    threads, exports = scene.near(place, NfsServer), scene.near(place, Exports)
    services, sockets = scene.near(place, Services), scene.near(place, Listeners)
    listed = scene.near(place, Containers)
    return (
        (threads is not None and bool(threads.threads))
        or (exports is not None and bool(exports.exports))
        or (
            services is not None
            and any(s.is_active and _NFS_SERVICE.search(s.name) for s in services.services)
        )
        or (sockets is not None and any(one.port == 2049 for one in sockets.listeners))
        or any(re.search(r"(?i)\bnfs|ganesha", f"{c.name} {c.image}") for c in _running(listed))
    )


def _page_cache(scene: Scene) -> Iterator[Judgement]:
    short = dict(_short_places(scene))
    for place, memory in scene.each(Meminfo):
        cached = memory.cached_bytes
        if cached is None or cached <= _CACHE_BYTES or not _serves_files(scene, place):
            continue
        told = f"{gib(cached)} of page cache on the node that serves files over NFS"
        lack = next(
            (
                text for other, text in short.items()
                if other is None or not scene.are_apart(place, other)
            ),
            None,
        )  # fmt: skip
        if lack is None:
            yield Judgement(
                place, "fail", told, "page cache dropped before a launch", severity="info",
                evidence=shown(scene, place, Meminfo, NfsServer),
            )  # fmt: skip
            continue
        yield Judgement(
            place, "fail", f"{lack}: {told}", "less than 10 GiB of page cache there at the start",
            evidence=shown(scene, place, EngineLog, Meminfo, NfsServer, Exports),
        )  # fmt: skip


def _short_places(scene: Scene) -> Iterator[tuple[str | None, str]]:
    """Places whose engine found too little free memory, and by how much."""
    at_load: list[tuple[str | None, float]] = []
    for place, log in scene.each(EngineLog):
        for line in log.lines:
            if match := _SHORT.search(line.text):
                free, need = float(match[1]), float(match[4])
                yield place, f"short by {need - free:.2f} GiB ({free:.2f} of {need:.2f} GiB free)"
                break
            if match := _LOAD_BEGIN.search(line.text):
                at_load.append((place, float(match[1])))
    if len(at_load) < 2:
        return
    best = max(gb for _, gb in at_load)
    for place, gb in at_load:
        if best - gb > _GAP_GB:
            yield place, f"{gb:.2f} GB free at the load, {best - gb:.2f} GB less than another rank"


CHECKS: tuple[Check, ...] = (
    Check(
        "GPU.BUSY", "MEM_ORPHAN_ENGINE", "no leftover of an engine holds memory",
        ("doctor", "launch"), "error", "memory", (GpuProcesses,), _orphans,
        why="the parts of a killed engine live on, re-parented, and hold its memory; or this node"
        " is another cluster's worker",
        fix="kill the owner by its pid once you know what it is; never lower the memory fraction"
        " to fit around a leak",
        symptom="The server is stopped and its port free, but the next launch says that memory"
        " is missing.",
        also=("GPU_BUSY",),
    ),
    Check(
        "MEM.PAGECACHE", "MEM_PAGECACHE_NFS_HEAD", "the NFS head's page cache leaves room",
        ("doctor", "watch"), "error", "memory", (Meminfo,), _page_cache,
        why="the workers' reads of the checkpoint fill the page cache of the node that serves it,"
        " and the cache competes with the GPU for one pool: the model is not too big",
        fix="drop caches on that node through the load: sudo sh -c 'sync; echo 3 >"
        " /proc/sys/vm/drop_caches'; or keep local copies on the workers",
        symptom="Only the head fails, a minute into the workers' load: free memory on startup is"
        " less than desired.",
    ),
)  # fmt: skip
