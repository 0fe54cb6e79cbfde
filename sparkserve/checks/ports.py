"""Ports, stale engines and running configurations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene
from sparkserve.facts import runtime
from sparkserve.facts.containers import Containers
from sparkserve.facts.rendered import ProfileDigests, RenderedArgv
from sparkserve.facts.settings_text import options_of
from sparkserve.facts.sockets import Listener, Listeners
from sparkserve.model.facts import Unobserved

_USUAL_PORTS = (8888, 20000)
"""Endpoint and rendezvous of the published recipes, where no profile names others."""
_DIGEST_LABEL = re.compile(r"(?i)^sparkserve\.profile[._-]?(?:sha256|digest)$")


def _busy(scene: Scene) -> Iterator[Judgement]:
    for place, fact, reading in scene.seen(Listeners):
        if _serves(scene, place):
            # Its ports are taken because it serves; NODE.IDLE says so once.
            continue
        wanted = _wanted_ports(scene, place)
        asked = {
            int(p) for p in re.findall(r"(?:sport = :|-i\w*:|:)(\d{1,5})\b", reading.command or "")
        }
        held: dict[int, Listener] = {}
        for one in fact.listeners:
            if one.port in wanted or (scene.wish is None and one.port in asked):
                before = held.get(one.port)
                if before is None or before.pid is None:
                    held[one.port] = one
        if held:
            mends = "; ".join(_release(one) for one in held.values())
            yield Judgement(
                place, "fail",
                observed=", ".join(_held(one) for one in held.values()),
                expected=f"free: {', '.join(str(port) for port in held)}",
                fix=f"on {place or 'the node'}: {mends}",
            )  # fmt: skip
        else:
            ports = sorted(wanted | (asked if scene.wish is None else set()))
            yield passed(place, f"free: {', '.join(str(port) for port in ports)}")


def _serves(scene: Scene, place: str | None) -> bool:
    facts = scene.facts.get(place or "")
    if facts is None:
        return False
    holder = runtime.HOLDER.read(facts)
    return not isinstance(holder, Unobserved) and holder.run_id is not None


def _wanted_ports(scene: Scene, place: str | None) -> set[int]:
    if scene.wish is None:
        return set(scene.wanted.ports) or set(_USUAL_PORTS)
    ports = {scene.wish.serving.port}
    if scene.rank_of(place) == 0 and scene.fleet is not None and len(scene.fleet.nodes) > 1:
        ports |= {scene.wish.fabric.dist_port, scene.wish.fabric.guard_port}
    return ports


def _held(one: Listener) -> str:
    if one.pid is None:
        return f"{one.port} is taken; who holds it is not shown to this user"
    return f"{one.port} held by pid {one.pid}" + (f" ({one.process})" if one.process else "")


def _release(one: Listener) -> str:
    if one.pid is None:
        return f"sudo ss -ltnp 'sport = :{one.port}'"
    return f"ps -o pid,user,lstart,cmd -p {one.pid}; kill {one.pid}"


def _reverted(scene: Scene) -> Iterator[Judgement]:
    on_disk = [fact.on_disk for _, fact, _ in scene.seen(ProfileDigests) if fact.on_disk]
    if scene.wish is not None:
        on_disk.append(scene.wish.digest)
    running = [
        (place, "the running container", fact.running)
        for place, fact, _ in scene.seen(ProfileDigests)
        if fact.running
    ]
    for place, fact in scene.each(Containers):
        for container in fact.containers:
            if container.status in (None, "running"):
                running += [
                    (place, container.name or "the running container", value)
                    for key, value in (container.labels or {}).items()
                    if _DIGEST_LABEL.match(key) and value
                ]
    for place, name, digest in running:
        for wanted in on_disk[:1]:
            if digest.startswith(wanted) or wanted.startswith(digest):
                yield passed(place, f"{name} runs the profile {digest[:12]}")
            else:
                yield Judgement(
                    place, "fail",
                    observed=f"{name} runs profile {digest[:12]}, on disk is {wanted[:12]}: "
                    "the running config is not the profile",
                    expected=f"sparkserve.profile_sha256={wanted[:12]}",
                    evidence=(f"running {digest}", f"on disk {wanted}"),
                )  # fmt: skip


def _other_arguments(scene: Scene) -> Iterator[Judgement]:
    """What differs between a running command line and the one that would be rendered now."""
    rendered = [argv.argv for _, argv, _ in scene.seen(RenderedArgv)]
    if len(rendered) != 1:
        return
    wanted = options_of(rendered[0])
    for place, fact in scene.each(Containers):
        for container in fact.containers:
            told = options_of(container.args or ())
            if not told or not set(told) & set(wanted):
                continue
            changed = [
                f"--{name} {told.get(name, 'is not given')}, wanted {wanted.get(name, 'not given')}"
                for name in dict.fromkeys((*wanted, *told))
                if told.get(name) != wanted.get(name)
            ]
            name = container.name or "the running container"
            if changed:
                yield Judgement(
                    place, "fail", observed=f"{name} runs with " + "; ".join(changed),
                    expected="the arguments of the profile",
                )  # fmt: skip
            else:
                yield passed(place, f"{name} runs with the profile's {len(wanted)} options")


def _running(scene: Scene) -> Iterator[Judgement]:
    yield from _reverted(scene)
    yield from _other_arguments(scene)


CHECKS: tuple[Check, ...] = (
    Check(
        "PORT.HOLDER", "ENG_PORT_BUSY", "Nobody holds the ports", ("doctor", "launch"), "error",
        "config", (Listeners,), _busy,
        why="the engine would load for minutes and then fail to bind",
        fix="stop the process that holds the port",
        symptom="'Address already in use' after the weights were loaded; or clients reach an old "
        "engine.",
    ),
    Check(
        "RUN.CONFIG", "ENG_CONFIG_REVERTED", "What runs is the profile", ("verify", "doctor"),
        "error", "engine", (ProfileDigests, Containers), _running,
        why="a container that was started before the profile changed, or by another tool, keeps "
        "its old settings",
        fix="sparkserve stop, then sparkserve launch with the profile",
        symptom="A setting that you changed has no effect.",
    ),
)  # fmt: skip
