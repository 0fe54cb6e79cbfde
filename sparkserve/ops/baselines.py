"""Each node's own record of its best days, kept on the controller and judged as a reading."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from pydantic import ValidationError

from sparkserve.checks.scene import Scene
from sparkserve.facts.baseline import BASELINE, NodeBaseline, Seen, updated
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.unified import Buddyinfo, Meminfo
from sparkserve.files import save_file
from sparkserve.model.cluster import Cluster
from sparkserve.model.reading import Reading
from sparkserve.paths import state_dir


def baseline_readings(cluster: Cluster) -> tuple[Reading, ...]:
    """The records of a cluster's nodes; nodes that were never seen have none."""
    readings = []
    for node in cluster.nodes:
        path = _path(cluster.name, node.name)
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            # A record that cannot be read is made anew by the next healthy look.
            continue
        readings.append(
            Reading(
                text=text,
                label=f"{node.name}: {BASELINE}",
                node=node.name,
                what=BASELINE,
                format="json",
            )
        )
    return tuple(readings)


def remember(
    cluster: Cluster, scene: Scene, nodes: Iterable[str], *, became_ready: bool = False
) -> None:
    """Update the records of nodes that were just looked at and are well.

    became_ready: the look belongs to a launch that became ready.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    for node in nodes:
        seen = Seen(
            versions=scene.of(node, HostVersions),
            memory=scene.of(node, Meminfo),
            buddyinfo=scene.of(node, Buddyinfo),
        )
        if seen.memory is None:
            continue
        path = _path(cluster.name, node)
        record = updated(_known(path), seen, became_ready=became_ready)
        save_file(path, (record.model_dump_json(indent=2) + "\n").encode(), mode=0o600)


def _known(path: Path) -> NodeBaseline | None:
    try:
        return NodeBaseline.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _path(cluster: str, node: str) -> Path:
    return state_dir() / "baselines" / quote(cluster, safe="") / f"{quote(node, safe='')}.json"
