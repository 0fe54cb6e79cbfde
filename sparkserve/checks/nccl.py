"""NCCL settings, library and images: what an image or a file brings along unasked."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_view import topology
from sparkserve.checks.nccl_log import CHECKS as IN_ITS_LOG
from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.environment import Environment
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.nccl_library import NcclFiles, NcclSettings, Version, version_in
from sparkserve.facts.routes import Addresses
from sparkserve.facts.wanted import normal

OLDEST: Version = (2, 29, 3)
"""First NCCL whose proxy keeps its slots on aarch64; case NET_NCCL_TOO_OLD."""
ADVISED = "2.30.7"
_COMMUNICATION = re.compile(r"(?:NCCL|GLOO|TP|UCX|SGLANG|OMPI)_\w+")
# Versions say what an image was built with and steer nothing.
_HARMLESS = re.compile(r"\w+_VERSION\w*|\w+_HOME|\w+_DIR|\w+_ROOT")
_STEERING = re.compile(r"\w*(?:IFNAME|NET_DEVICES|IB_HCA|GID_INDEX|IB_DISABLE|HOST_IP)")


def _image_env(scene: Scene) -> Iterator[Judgement]:
    runs = [env for _, env, _ in scene.seen(Environment) if env.origin != "image"]
    overridden = {name for env in runs for name in env.variables}
    for place, env, reading in scene.seen(Environment):
        if env.origin != "image":
            continue
        baked = {
            name: value
            for name, value in env.variables.items()
            if _COMMUNICATION.fullmatch(name) and not _HARMLESS.fullmatch(name)
        }
        # Where no run is known, only what steers the network is worth a word.
        left = {
            name: value
            for name, value in baked.items()
            if name not in overridden and (runs or _STEERING.fullmatch(name))
        }
        if not left:
            yield passed(place, "the image sets nothing of its own for communication")
            continue
        absent = _absent(scene, place, left)
        told = ", ".join(f"{name}={value}" for name, value in left.items())
        gone = f"; no such interface here: {', '.join(absent)}" if absent else ""
        yield Judgement(
            place,
            "fail",
            observed=f"from the image, not overridden: {told}{gone}",
            expected="every variable of communication set by the launch",
            fix="set on every rank: " + " ".join(f"-e {name}=<own value>" for name in left),
            evidence=evidence([reading]),
            severity="error" if absent else None,
        )


def _absent(scene: Scene, place: str | None, variables: dict[str, str]) -> list[str]:
    """Interfaces that the variables name and that a node with known addresses lacks."""
    known = [
        addresses
        for other, addresses in scene.each(Addresses)
        if addresses.listed and (place is None or other == place or scene.same_place(place, other))
    ]
    names = [
        name.strip().lstrip("=")
        for variable, value in variables.items()
        if variable.endswith("IFNAME") and not value.startswith("^")
        for name in value.split(",")
    ]
    return [
        name
        for name in dict.fromkeys(filter(None, names))
        if any(not any(i.startswith(name) for i in one.by_interface()) for one in known)
    ]


def _conf(scene: Scene) -> Iterator[Judgement]:
    wanted = {normal(key).rpartition(".")[2] for key in scene.wanted.keys or {}}
    wanted |= {normal(name) for name in (scene.wish.fabric.nccl if scene.wish else {})}
    for place, known, reading in scene.seen(NcclSettings):
        strange = {k: v for k, v in known.settings.items() if normal(k) not in wanted}
        if strange:
            count = f"{len(strange)} unexpected setting{'s' if len(strange) > 1 else ''}"
            told = ", ".join(f"{name}={value}" for name, value in strange.items())
            yield Judgement(
                place,
                "fail",
                observed=f"{count} in nccl.conf: {told}",
                expected="only settings that the profile names",
                fix="mount an empty file over it: -v /dev/null:/etc/nccl.conf:ro (and use an image"
                " without it)",
                evidence=evidence([reading]),
            )
        else:
            yield passed(place, "nccl.conf sets nothing of its own")


def _versions(scene: Scene) -> dict[str | None, Version]:
    """The version that each place runs: by its newest log line, else by what it has mapped.

    What an image's environment or a package list says is no witness.
    """
    found: dict[str | None, Version] = {}
    for _, log, _ in scene.seen(EngineLog):
        for line in log.lines:
            version = version_in(line.text)
            if version is not None:
                found[line.place] = version
    for place, files in scene.each(NcclFiles):
        told = [file.version for file in files.loaded if file.version is not None]
        if told and not any(p == place or scene.same_place(p, place) for p in found):
            found[place] = min(told)
    return found


def _is_cpu(scene: Scene) -> bool:
    engine = scene.wish.engine if scene.wish else None
    return engine is not None and (engine.device == "cpu" or engine.kind == "light")


def _version(scene: Scene) -> Iterator[Judgement]:
    if _is_cpu(scene):
        return
    found = _versions(scene)
    texts = {place: ".".join(map(str, version)) for place, version in found.items()}
    differ = len(set(found.values())) > 1
    every = ", ".join(f"{place or 'a rank'} {text}" for place, text in texts.items())
    more = f"; ranks differ: {every}" if differ else ""
    oldest = ".".join(map(str, OLDEST))
    old = [place for place, version in found.items() if version < OLDEST]
    for place in old:
        yield Judgement(
            place,
            "fail",
            observed=f"NCCL {texts[place]} < {oldest}{more}",
            expected=f"at least {oldest}, the same on every rank",
        )
    if differ and not old:
        yield Judgement(
            None,
            "fail",
            observed=f"ranks differ: {every}",
            expected="one version on every rank",
            why="ranks with different libraries hang in a collective or fail when they join",
            fix=f"bring the same NCCL ({ADVISED}) to every node",
        )
    for place in found:
        if place not in old and not differ:
            yield passed(place, f"NCCL {texts[place]}")


def _ring_library(scene: Scene) -> Iterator[Judgement]:
    nodes = len(scene.fleet.nodes) if scene.fleet else scene.wanted.nodes
    if topology(scene) != "ring" or (nodes or 4) < 4 or _is_cpu(scene):
        return
    for place, files in scene.each(NcclFiles):
        known = [file for file in files.loaded if file.has_ring_patch is not None]
        stock = [file for file in known if not file.has_ring_patch]
        if stock:
            yield Judgement(
                place,
                "fail",
                observed=f"{stock[0].path or 'libnccl'} lacks SWITCHLESS_RING_ONLY",
                expected="the patched NCCL",
            )
        elif known:
            yield passed(place, f"patched: {known[0].path or 'libnccl'}")


def _twice(scene: Scene) -> Iterator[Judgement]:
    for place, files in scene.each(NcclFiles):
        by_process: dict[int, set[str]] = {}
        for file in files.files:
            if file.pid is not None and file.path is not None:
                by_process.setdefault(file.pid, set()).add(file.path)
        for pid, paths in by_process.items():
            if len(paths) > 1:
                yield Judgement(
                    place,
                    "fail",
                    observed=f"process {pid} has two NCCL libraries: {', '.join(sorted(paths))}",
                    expected="one",
                )


CHECKS: tuple[Check, ...] = (
    Check(
        "NCCL.IMAGE_ENV", "NET_IMAGE_ENV_BAKED", "the image steers no communication",
        ("prepare", "doctor", "launch"), "warning", "config", (), _image_env,
        why="variables of the image hold where the launch sets none, so a rank uses an interface"
        " that nobody asked for",
        fix="set every NCCL_, GLOO_ and TP_ variable on every rank",
        symptom="A correct env file does not help: gloo dies because of an interface that nobody"
        " configured.",
        text_only="sparkserve's own launch sets these variables for every rank; these are images"
        " of other launchers",
    ),
    Check(
        "NCCL.CONF", "NET_NCCL_CONF_IN_IMAGE", "no nccl.conf of an image's own",
        ("prepare", "doctor"), "error", "config", (NcclSettings,), _conf,
        why="NCCL reads /etc/nccl.conf besides the environment, so settings of the image's builder"
        " hold though the launch looks right",
        fix="mount an empty file over /etc/nccl.conf",
        symptom="SGLang freezes in the first small all_reduce; the environment looks right.",
    ),
    Check(
        "NCCL.VERSION", "NET_NCCL_TOO_OLD", "NCCL is recent and the same everywhere",
        ("prepare", "doctor", "watch"), "error", "hardware", (NcclFiles, EngineLog), _version,
        why="before 2.29.3 NCCL's proxy loses its operation slots on aarch64 until none of 2048 is"
        " left",
        fix=f"use NCCL {ADVISED} on every rank: mount one library over the image's",
        symptom="After minutes to hours one rank spins in ncclLocalOpAppend at 96 % and about 20 W;"
        " the watchdog ends the server.",
    ),
    Check(
        "NCCL.RING_PATCH", "NET_RING_TREE", "a ring has the patched NCCL", ("doctor", "launch"),
        "error", "hardware", (NcclFiles,), _ring_library,
        why="a stock NCCL builds trees between nodes that no cable joins",
        fix="put the patched library on every node, or join the nodes by a switch",
        symptom="`unhandled system error` in ncclTransportTreeConnect, after all rings connected.",
    ),
    Check(
        "NCCL.ONCE", "NET_NCCL_TWICE", "a process loads one NCCL", ("doctor",),
        "error", "hardware", (NcclFiles,), _twice,
        why="the image's library is mapped beside the overlay's",
        fix="mount the overlay only, and take the other library off LD_LIBRARY_PATH",
        symptom="DeepEP says that there are two NCCL runtimes.",
    ),
    *IN_ITS_LOG,
)  # fmt: skip
