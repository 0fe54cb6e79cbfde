"""Paths that a run would use, wherever they are told: mounts, command lines, the wish."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.scene import Scene
from sparkserve.facts.containers import Containers
from sparkserve.facts.environment import Environment
from sparkserve.facts.rendered import RenderedArgv, RenderedMounts

_HOME = re.compile(r"/home/[^/]+")
_DATA = re.compile(
    r"(?:^|[._])(?:\w*path|\w*dir|directory|\w*cache|\w*home|mounts?|root|volume|source)$"
)
"""Keys of a wish that name data; an interpreter may lie in anybody's home."""


def used_paths(scene: Scene, place: str | None) -> Iterator[tuple[str, str]]:
    """(path on the host, what names it) of everything that would be used at a place."""
    for other, rendered, _ in scene.seen(RenderedMounts):
        if _concerns(scene, place, other):
            yield from ((mount.source, "the mount of") for mount in rendered.mounts)
    for other, containers, _ in scene.seen(Containers):
        if _concerns(scene, place, other):
            for container in containers.containers:
                for one in container.mounts or ():
                    if one.source is not None and one.kind != "volume":
                        yield one.source, f"a mount of {container.name or 'a container'},"
    for other, argv, _ in scene.seen(RenderedArgv):
        if _concerns(scene, place, other):
            for word in argv.argv:
                for path in re.findall(r"(?:^|=|source=|src=)(/[^:,=\s]+)", word):
                    yield path, "the command line's"
    for other, environment, _ in scene.seen(Environment):
        if environment.origin == "runtime" and _concerns(scene, place, other):
            for name, value in environment.variables.items():
                if value.startswith("/"):
                    yield value, f"{name} ="
    for key, value in (scene.wanted.keys or {}).items():
        if isinstance(value, str) and value.startswith("/") and _DATA.search(key.lower()):
            yield value, f"{key} ="
        elif isinstance(value, list) and re.search(r"(?:^|[._])(?:volumes|binds)$", key.lower()):
            for bind in value:
                if isinstance(bind, str) and bind.startswith("/"):
                    yield bind.partition(":")[0], f"{key} ="


def foreign_homes(scene: Scene, place: str | None, home: str) -> list[tuple[str, str]]:
    """Paths of a place below the home of somebody else, each once, with what names them."""
    found: dict[str, str] = {}
    for path, origin in used_paths(scene, place):
        other = _HOME.match(path)
        if other and home.rstrip("/") != other[0]:
            found.setdefault(path, origin)
    return list(found.items())


def _concerns(scene: Scene, place: str | None, other: str | None) -> bool:
    if other is None or scene.same_place(place, other):
        return True
    # Two places whose ranks are not known may be one.
    return scene.rank_of(place) is None or scene.rank_of(other) is None
