"""What several checks must know of a place: whether it is a Spark, and what shows a fact."""

from __future__ import annotations

import re

from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts import runtime
from sparkserve.facts.container_kinds import Container
from sparkserve.facts.gpu import NO_TOOL, Gpus
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.reader import Fact
from sparkserve.model.facts import Unobserved

# Product names of the makers' GB10 boxes; nobody verified the list on the machines.
_PRODUCTS = re.compile(
    r"(?i)spark|gb10|ascent gx10|zgx nano|thinkstation pgx|edgexpert|ai top atom|veriton gn100"
)


def is_spark(scene: Scene, place: str | None) -> bool | None:
    """Whether the place is a DGX Spark or a sibling; None = nothing there tells."""
    gpus, versions = scene.of(place, Gpus), scene.of(place, HostVersions)
    if gpus is not None and gpus.names:
        return any("GB10" in name for name in gpus.names)
    product = versions.product if versions is not None else None
    if product is not None and _PRODUCTS.search(product):
        return True
    if product is not None or (gpus is not None and gpus.problem == NO_TOOL):
        return False
    return None


def wants_spark(scene: Scene) -> bool:
    """Whether the wish needs Sparks; False without a wish, and for engines without a GPU."""
    if scene.wish is None:
        return False
    engine = scene.wish.engine
    return engine.device == "cuda" and engine.kind != "light"


def rules_apply(scene: Scene, place: str | None) -> bool:
    """Whether what holds for a Spark is asked of this place: a plain machine is left in peace."""
    return wants_spark(scene) or is_spark(scene, place) is not False


def shown(scene: Scene, place: str | None, *kinds: type[Fact]) -> tuple[str, ...]:
    """Readings of one Spark, under any of its names, that show these kinds of fact."""
    readings = [
        reading
        for kind in kinds
        for other, _, reading in scene.seen(kind)
        if other == place or scene.same_place(other, place)
    ]
    return tuple(dict.fromkeys(evidence(readings)))


_SERVING = re.compile(r"(?i)dsv\d|sglang|vllm|trtllm|engine|llm|rank[-_]?\d|sparkserve")


def is_serving(container: Container) -> bool:
    """Whether a container looks like one of an engine, by its name and its image."""
    return _SERVING.search(f"{container.name or ''} {container.image or ''}") is not None


def run_on(scene: Scene, place: str | None) -> str | None:
    """Run of ours that holds the node; its processes are meant to be there."""
    if place is None or place not in scene.facts:
        return None
    holder = runtime.HOLDER.read(scene.facts[place])
    return None if isinstance(holder, Unobserved) else holder.run_id


def gib(size_bytes: float) -> str:
    """A size of memory as people compare it: ``15.0 GiB``."""
    return f"{size_bytes / (1 << 30):.1f} GiB"
